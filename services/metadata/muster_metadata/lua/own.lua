-- Notes who claimed a shard: the higher epoch wins. KEYS[1]: owner table; KEYS[2]: identity of the node. ARGV: identity
-- expected, shard, epoch, row as JSON.
if redis.call('HGET', KEYS[2], 'identity') ~= ARGV[1] then return {'NOLOG', 'empty'} end
local stored = redis.call('HGET', KEYS[1], ARGV[2])
local read, row = pcall(cjson.decode, stored or 'null')
local known = read and type(row) == 'table' and type(row.epoch) == 'number' and row.epoch or 0
if known >= tonumber(ARGV[3]) then return {'DUP'} end
-- Passes also where the node is out of memory: a command that removes comes first (`use_reserve`).
redis.call('HDEL', KEYS[1], '')
redis.call('HSET', KEYS[1], ARGV[2], ARGV[4])
return {'OK'}
