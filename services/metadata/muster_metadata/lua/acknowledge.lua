-- Stores the acknowledged position by itself. ARGV[4], ARGV[5]: its id and hash, which this log must have.
local refused = refusal()
if refused then return refused end
local id, hash = last_entry()
if hash_at(ARGV[4]) ~= ARGV[5] then return {'MISMATCH', id, hash} end
pass()
acknowledge(ARGV[4])
return {'OK', id, hash}
