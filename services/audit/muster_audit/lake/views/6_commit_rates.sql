-- Commits by group and UTC day: how many, how far they went, and how old the one before was, of each partition.
SELECT group_id, date_format(timestamp_millis(written_at_ms), 'yyyy-MM-dd') AS written_day, count(*) AS commits,
       count(DISTINCT topic, partition) AS partitions, coalesce(sum(greatest(advance, 0)), 0) AS advance,
       percentile(age_ms, 0.5) AS median_age_ms, percentile(age_ms, 0.99) AS p99_age_ms, max(age_ms) AS longest_age_ms
FROM commit_steps
GROUP BY group_id, written_day
