-- A page of the audit trail. KEYS[1]: stream; KEYS[2]: identity of the node. ARGV: identity expected, id after which to begin, most
-- events.
local found = redis.call('HGET', KEYS[2], 'identity')
if not found then return {'NOLOG', 'empty'} end
if found ~= ARGV[1] then return {'NOLOG', 'foreign', found} end
return {'OK', redis.call('XRANGE', KEYS[1], '(' .. ARGV[2], '+', 'COUNT', ARGV[3])}
