-- Removes a copy of a log that came to nothing. KEYS[5]: the copy. ARGV[4], ARGV[5]: id and hash that it must end at.
log = KEYS[5]
local id, hash = last_entry()
if id ~= ARGV[4] or hash ~= ARGV[5] then return {'MISMATCH', id or '0-0', hash or ''} end
return {'OK', redis.call('DEL', log)}
