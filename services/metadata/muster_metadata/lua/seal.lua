-- Moves the leases to the table of a cluster with features, so that a metadata that knows none can neither read nor
-- write any. KEYS[1]: lease table of before; KEYS[2]: lease table; KEYS[3]: identity of the node. ARGV: identity expected.
if redis.call('HGET', KEYS[3], 'identity') ~= ARGV[1] then return {'NOLOG', 'empty'} end
local rows = redis.call('HGETALL', KEYS[1])
for i = 1, #rows, 2 do
  local before, stored = cjson.decode(rows[i + 1]), redis.call('HGET', KEYS[2], rows[i])
  local now = stored and cjson.decode(stored)
  if not now or now.run < before.run or (now.run == before.run and now.counter < before.counter) then
    redis.call('HSET', KEYS[2], rows[i], rows[i + 1])
  end
end
redis.call('SET', KEYS[1], KEYS[2])
return {'OK'}
