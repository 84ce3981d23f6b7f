-- Adds a part to a copy of a log that is built beside it. KEYS[5]: the copy. ARGV[4], ARGV[5]: id and hash
-- that it must end at; empty: start again; ARGV[6]: `gone` if the log here must still be gone, for else somebody
-- else has filled it; then id, record, nonce and hash of each entry.
local found = redis.call('HGET', node, 'identity')
if found and found ~= identity then return {'NOLOG', 'foreign', found} end
if ARGV[6] == 'gone' and not absent() then return {'MISMATCH', last_entry()} end
log = KEYS[5]
if ARGV[4] == '' then
  redis.call('DEL', log)
else
  local id, hash = last_entry()
  if id ~= ARGV[4] or hash ~= ARGV[5] then return {'MISMATCH', id or '0-0', hash or ''} end
end
write(7)
return {'OK', ARGV[#ARGV - 3], ARGV[#ARGV]}
