-- Brings a node into a later configuration of the log. KEYS[1]: identity of the node. ARGV: what its identity must
-- begin with, number of the configuration, the new identity, addresses of the nodes in it. An identity ends
-- with the number of its configuration, and only a lower one is replaced: no node ever goes back.
local found = redis.call('HGET', KEYS[1], 'identity')
if not found then return {'NOLOG', 'empty'} end
if found == ARGV[3] then return {'DUP'} end
local number = tonumber(string.sub(found, #ARGV[1] + 1))
if string.sub(found, 1, #ARGV[1]) ~= ARGV[1] or not number or number >= tonumber(ARGV[2]) then
  return {'NOLOG', 'foreign', found}
end
redis.call('HSET', KEYS[1], 'identity', ARGV[3], 'nodes', ARGV[4])
return {'OK'}
