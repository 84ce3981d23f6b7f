-- Partitions whose committed offset did not grow for longer than `stall_ms`, one row each time: until it grew again,
-- or until the end of the period where somebody has the partition then (`lasts`).
WITH grown AS (
  SELECT group_id, topic, partition, written_at_ms,
         lead(written_at_ms) OVER (PARTITION BY group_id, topic, partition ORDER BY offset) AS next_ms
  FROM commit_steps WHERE coalesce(advance, 1) > 0
),
owned AS (
  SELECT DISTINCT group_id, topic, partition
  FROM assignments CROSS JOIN period
  WHERE assignments.from_ms < period.to_ms AND coalesce(assignments.to_ms, period.to_ms) >= period.to_ms
)
SELECT /*+ MERGE(owned) */ grown.group_id, grown.topic, grown.partition, written_at_ms AS from_ms,
       coalesce(next_ms, period.to_ms) AS to_ms, coalesce(next_ms, period.to_ms) - written_at_ms AS stalled_ms,
       next_ms IS NULL AS lasts
FROM grown CROSS JOIN period
LEFT JOIN owned
  ON owned.group_id = grown.group_id AND owned.topic = grown.topic AND owned.partition = grown.partition
WHERE coalesce(next_ms, period.to_ms) - written_at_ms > period.stall_ms
  AND (next_ms IS NOT NULL OR owned.group_id IS NOT NULL)
