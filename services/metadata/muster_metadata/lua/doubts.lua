-- Answers which runs of servers were without an append-only file, as this node knows. KEYS[1]: the runs; KEYS[2]: identity of the
-- node. ARGV: identity expected. A node that lost its data knows nothing of them.
local found = redis.call('HGET', KEYS[2], 'identity')
if not found then return {'NOLOG', 'empty'} end
if found ~= ARGV[1] then return {'NOLOG', 'foreign', found} end
return {'OK', redis.call('HGETALL', KEYS[1])}
