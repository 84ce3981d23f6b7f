-- Commits by group and UTC day: how many, how far they went, and how old the one before was, of each partition.
WITH dated AS (
  SELECT *, date_format(timestamp_millis(written_at_ms), 'yyyy-MM-dd') AS written_day FROM commit_steps
),
ranked AS (
  SELECT *, count(age_ms) OVER (PARTITION BY group_id, written_day) AS aged,
         bigint(row_number() OVER (PARTITION BY group_id, written_day ORDER BY age_ms NULLS LAST)) - 1 AS place
  FROM dated
)
SELECT group_id, written_day, count(*) AS commits, count(DISTINCT topic, partition) AS partitions,
       coalesce(sum(greatest(advance, 0)), 0) AS advance,
       sum(age_ms * greatest(0, 2 - abs(2 * place - (aged - 1)))) / 2 AS median_age_ms,
       sum(age_ms * greatest(0, 100 - abs(100 * place - 99 * (aged - 1)))) / 100 AS p99_age_ms,
       max(age_ms) AS longest_age_ms
FROM ranked
GROUP BY group_id, written_day
