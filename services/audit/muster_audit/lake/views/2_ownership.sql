-- For each group: how long its partitions had an owner and how long not, in partition-milliseconds, gaps in which the
-- group had no members left out; and the share of the time with an owner, which an SLO is set for.
WITH owned AS (
  SELECT group_id, least(coalesce(assignments.to_ms, period.to_ms), period.to_ms)
                   - greatest(assignments.from_ms, period.from_ms) AS owned_ms, 0 AS unowned_ms
  FROM assignments CROSS JOIN period
  WHERE assignments.from_ms < period.to_ms AND coalesce(assignments.to_ms, period.to_ms) > period.from_ms
),
unowned AS (
  SELECT group_id, 0 AS owned_ms, length_ms - empty_ms AS unowned_ms FROM partition_gaps
)
SELECT group_id, sum(owned_ms) AS owned_ms, sum(unowned_ms) AS unowned_ms, max(unowned_ms) AS longest_ms,
       count_if(unowned_ms > 0) AS gaps, sum(owned_ms) / sum(owned_ms + unowned_ms) AS availability
FROM (SELECT * FROM owned UNION ALL SELECT * FROM unowned)
GROUP BY group_id
HAVING sum(owned_ms + unowned_ms) > 0
