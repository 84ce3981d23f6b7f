-- Generations that were started in the period, by group, cause and UTC day, with what they moved and how long it took
-- from their cause to the assignment. Where the fewest moves are not known, all count as needed.
SELECT group_id, cause, date_format(timestamp_millis(generations.from_ms), 'yyyy-MM-dd') AS started_day,
       count(*) AS rebalances, coalesce(sum(moves), 0) AS moves,
       coalesce(sum(coalesce(minimum_moves, moves)), 0) AS minimum_moves,
       percentile(assigned_at_ms - cause_at_ms, 0.5) FILTER (WHERE cause_at_ms > 0) AS median_ms,
       max(assigned_at_ms - cause_at_ms) FILTER (WHERE cause_at_ms > 0) AS longest_ms
FROM generations CROSS JOIN period
WHERE generations.from_ms >= period.from_ms AND generations.from_ms < period.to_ms
GROUP BY group_id, cause, started_day
