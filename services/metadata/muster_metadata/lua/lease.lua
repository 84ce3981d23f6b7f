-- The lease that is stored under a name; empty: none. KEYS[1]: lease table; KEYS[2]: identity of the node. ARGV: identity
-- expected, name. A node that lost its data does not know who holds a lease.
if redis.call('HGET', KEYS[2], 'identity') ~= ARGV[1] then return {'NOLOG', 'empty'} end
return {'OK', redis.call('HGET', KEYS[1], ARGV[2]) or ''}
