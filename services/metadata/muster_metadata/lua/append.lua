-- Writes a batch after the exact end, all or nothing. ARGV[4], ARGV[5]: id and hash of that end;
-- ARGV[6]: acknowledged position of the writer; ARGV[7]: the floor that it knows; ARGV[8]: `frees` if it may use the
-- reserve; then id, record, nonce and hash of each entry.
local refused, floor, mark = refusal()
if refused then return refused end
if floor > epoch and floor > tonumber(ARGV[7]) then return {'RAISED', string.format('%d', floor)} end
local id, hash = last_entry()
local count = #ARGV
if id ~= ARGV[4] or hash ~= ARGV[5] then
  if hash_at(ARGV[count - 3]) ~= ARGV[count] then return {'MISMATCH', id, hash} end
  acknowledge(ARGV[6])
  return {'DUP', id, hash}
end
if ARGV[8] == 'frees' then use_reserve() end
-- First, for it fails where something else stands in that place, and then nothing may have been written.
acknowledge(ARGV[6])
write(9)
note_run(mark)
return {'OK', ARGV[count - 3], ARGV[count]}
