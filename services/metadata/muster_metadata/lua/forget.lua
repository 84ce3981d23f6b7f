-- Removes the row of a process that ended long ago. KEYS[1]: lease table. ARGV: name, session, counter.
local stored = redis.call('HGET', KEYS[1], ARGV[1])
if not stored then return {'DUP'} end
local row = cjson.decode(stored)
if row.session ~= ARGV[2] or row.counter > tonumber(ARGV[3]) then return {'DUP'} end
redis.call('HDEL', KEYS[1], ARGV[1])
return {'OK'}
