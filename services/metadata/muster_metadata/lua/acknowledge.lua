-- Stores the acknowledged position by itself. ARGV[4], ARGV[5]: its id and hash, which this log must have, or have had:
-- what was trimmed, through another instance as a rule, was acknowledged before.
local refused = refusal()
if refused then return refused end
local id, hash = last_entry()
local found, stored = hash_at(ARGV[4]), acknowledged_id()
if not found and stored and later(stored, ARGV[4]) and later(first_id(), ARGV[4]) then return {'DUP', id, hash} end
if found ~= ARGV[5] then return {'MISMATCH', id, hash} end
pass()
acknowledge(ARGV[4])
return {'OK', id, hash}
