-- Generations that were started in the period, by group, cause and UTC day, with what they moved and how long it took
-- from their cause to the assignment. Where the fewest moves are not known, all count as needed.
WITH started AS (
  SELECT group_id, cause, date_format(timestamp_millis(generations.from_ms), 'yyyy-MM-dd') AS started_day, moves,
         coalesce(minimum_moves, moves) AS minimum_moves,
         CASE WHEN cause_at_ms > 0 THEN assigned_at_ms - cause_at_ms END AS took_ms
  FROM generations CROSS JOIN period
  WHERE generations.from_ms >= period.from_ms AND generations.from_ms < period.to_ms
),
ranked AS (
  SELECT *, count(took_ms) OVER (PARTITION BY group_id, cause, started_day) AS assigned,
         bigint(row_number() OVER (PARTITION BY group_id, cause, started_day ORDER BY took_ms NULLS LAST)) - 1 AS place
  FROM started
)
SELECT group_id, cause, started_day, count(*) AS rebalances, coalesce(sum(moves), 0) AS moves,
       coalesce(sum(minimum_moves), 0) AS minimum_moves,
       sum(took_ms * greatest(0, 2 - abs(2 * place - (assigned - 1)))) / 2 AS median_ms, max(took_ms) AS longest_ms
FROM ranked
GROUP BY group_id, cause, started_day
