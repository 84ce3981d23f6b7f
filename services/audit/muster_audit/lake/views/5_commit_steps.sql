-- Each commit of the period with the one before it of the same partition: how much later, how much further.
SELECT group_id, topic, partition, offset, written_at_ms, committed_offset,
       written_at_ms - lag(written_at_ms) OVER earlier AS age_ms,
       committed_offset - lag(committed_offset) OVER earlier AS advance
FROM commits CROSS JOIN period
WHERE removed IS NULL AND written_at_ms >= period.from_ms AND written_at_ms < period.to_ms
WINDOW earlier AS (PARTITION BY group_id, topic, partition ORDER BY offset)
