-- Marks a lease as that of a dead process. KEYS[1]: lease table. ARGV: name, session, counter. Any renewal
-- since then says that it lives.
local stored = redis.call('HGET', KEYS[1], ARGV[1])
if not stored then return {'DUP'} end
local row = cjson.decode(stored)
if row.session ~= ARGV[2] or row.counter > tonumber(ARGV[3]) then return {'DUP'} end
row.dead = true
-- Passes also where the node is out of memory: a command that removes comes first (`use_reserve`).
redis.call('HDEL', KEYS[1], '')
redis.call('HSET', KEYS[1], ARGV[1], cjson.encode(row))
return {'OK'}
