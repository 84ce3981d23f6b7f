-- Notes runs of servers that were without an append-only file. A node that lost its data takes them, too, before it is one of
-- the cluster again. KEYS[1]: the runs; KEYS[2]: identity of the node. ARGV: identity expected, number of runs to remove,
-- these, then run and value of each to note.
local found = redis.call('HGET', KEYS[2], 'identity')
if found and found ~= ARGV[1] then return {'NOLOG', 'foreign', found} end
local removed = tonumber(ARGV[2])
-- Passes also where the node is out of memory: a command that removes comes first (`use_reserve`).
redis.call('HDEL', KEYS[1], '')
for i = 3, 2 + removed do redis.call('HDEL', KEYS[1], ARGV[i]) end
for i = 3 + removed, #ARGV, 2 do redis.call('HSETNX', KEYS[1], ARGV[i], ARGV[i + 1]) end
return {'OK'}
