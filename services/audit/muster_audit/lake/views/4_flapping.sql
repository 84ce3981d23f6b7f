-- Members that came more than once in the period: a static one by its static id, a dynamic one by client id and host.
-- `unexpected` lives ended because the member was silent or late.
WITH came AS (
  SELECT group_id, group_instance_id, CASE WHEN group_instance_id = '' THEN client_id ELSE '' END AS client_id,
         CASE WHEN group_instance_id = '' THEN host ELSE '' END AS host, ended_by,
         members.to_ms - members.from_ms AS life_ms
  FROM members CROSS JOIN period
  WHERE members.from_ms >= period.from_ms AND members.from_ms < period.to_ms
),
ranked AS (
  SELECT *, count(life_ms) OVER (PARTITION BY group_id, group_instance_id, client_id, host) AS ended,
         bigint(row_number() OVER (PARTITION BY group_id, group_instance_id, client_id, host
                                   ORDER BY life_ms NULLS LAST)) - 1 AS place
  FROM came
)
SELECT group_id, group_instance_id, client_id, host, count(*) AS lives,
       count_if(ended_by IN ('session expired', 'disconnected', 'rebalance timeout', 'not rejoined')) AS unexpected,
       sum(life_ms * greatest(0, 2 - abs(2 * place - (ended - 1)))) / 2 AS median_life_ms
FROM ranked
GROUP BY group_id, group_instance_id, client_id, host
HAVING count(*) > 1
