-- Times in which nobody had a partition of a group, one row each, within the period.
-- A gap begins where an ownership ended, and ends with the next one; of a partition that nobody got again with the
-- next assignment of the group, which left it out; or with the group. `empty_ms` of it the group had no members.
WITH had AS (
  SELECT group_id, topic, partition, ended_by, to_ms AS gap_ms,
         lead(from_ms) OVER (PARTITION BY group_id, topic, partition ORDER BY offset) AS next_ms
  FROM assignments
),
gone AS (
  SELECT group_id, to_ms AS gone_ms FROM generations WHERE ended_by = 'group gone'
),
assigned AS (
  SELECT group_id, assigned_at_ms FROM generations WHERE assigned_at_ms IS NOT NULL
),
bounded AS (
  SELECT had.group_id, topic, partition, ended_by, gap_ms, next_ms,
         min(gone_ms) AS gone_ms, min(assigned_at_ms) AS assigned_ms
  FROM had
  LEFT JOIN gone ON gone.group_id = had.group_id AND gone_ms >= gap_ms
  LEFT JOIN assigned ON assigned.group_id = had.group_id AND assigned_at_ms > gap_ms AND next_ms IS NULL
  WHERE gap_ms IS NOT NULL AND ended_by NOT IN ('topic deleted', 'group gone')
  GROUP BY had.group_id, topic, partition, ended_by, gap_ms, next_ms
),
gaps AS (
  SELECT group_id, topic, partition, ended_by, greatest(gap_ms, period.from_ms) AS from_ms,
         least(next_ms, gone_ms, assigned_ms, period.to_ms) AS to_ms
  FROM bounded CROSS JOIN period
),
empty AS (
  SELECT group_id, from_ms AS empty_from_ms, coalesce(to_ms, 9223372036854775807) AS empty_to_ms
  FROM generations WHERE members = 0
)
SELECT gaps.group_id, topic, partition, ended_by, from_ms, to_ms, to_ms - from_ms AS length_ms,
       coalesce(sum(greatest(least(to_ms, empty_to_ms) - greatest(from_ms, empty_from_ms), 0)), 0) AS empty_ms
FROM gaps LEFT JOIN empty ON empty.group_id = gaps.group_id
WHERE to_ms > from_ms
GROUP BY gaps.group_id, topic, partition, ended_by, from_ms, to_ms
