-- The read barrier: does the promise still stand?
local refused = refusal()
if refused then return refused end
local id, hash = last_entry()
return {'OK', id, hash}
