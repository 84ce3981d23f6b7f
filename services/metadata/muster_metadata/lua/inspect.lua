-- What the node holds of a log. Reads only.
local missing = absent()
if missing then return missing end
local id, hash = last_entry()
local held = redis.call('HMGET', promise, 'epoch', 'nonce')
local first = redis.call('XRANGE', log, '-', '+', 'COUNT', 1)[1][1]
return {'OK', id, hash, redis.call('GET', acknowledged) or '0-1', held[1], held[2], first, redis.call('XLEN', log)}
