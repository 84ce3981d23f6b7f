-- Notes who claimed a shard: the higher epoch wins. KEYS[1]: owner table; KEYS[2]: identity of the node. ARGV: identity
-- expected, shard, epoch, row as JSON.
if redis.call('HGET', KEYS[2], 'identity') ~= ARGV[1] then return {'NOLOG', 'empty'} end
local stored = redis.call('HGET', KEYS[1], ARGV[2])
local read, row = pcall(cjson.decode, stored or 'null')
local known = read and type(row) == 'table' and type(row.epoch) == 'number' and row.epoch or 0
if known >= tonumber(ARGV[3]) then return {'DUP'} end
redis.call('HSET', KEYS[1], ARGV[2], ARGV[4])
return {'OK'}
