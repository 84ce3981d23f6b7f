-- Makes every log of a node at once. KEYS[1]: identity of the node; then log, promise and acknowledged
-- position of each log. ARGV: identity, when the cluster was made, addresses of the nodes; then record, nonce
-- and hash of each genesis; at last the run of the server.
local found = redis.call('HGET', KEYS[1], 'identity')
if found then
  if found == ARGV[1] then return {'DUP'} end
  return {'NOLOG', 'foreign', found}
end
for i = 2, #KEYS do
  if redis.call('EXISTS', KEYS[i]) == 1 then return {'NOLOG', 'remains'} end
end
local k = 2
for i = 4, #ARGV - 1, 3 do
  redis.call('XADD', KEYS[k], '0-1', 'r', ARGV[i], 'n', ARGV[i + 1], 'h', ARGV[i + 2])
  redis.call('HSET', KEYS[k + 1], 'epoch', '0', 'nonce', '', 'tag', '', 'run', ARGV[#ARGV])
  redis.call('SET', KEYS[k + 2], '0-1')
  k = k + 3
end
redis.call('HSET', KEYS[1], 'identity', ARGV[1], 'created_at_ms', ARGV[2], 'nodes', ARGV[3])
return {'OK'}
