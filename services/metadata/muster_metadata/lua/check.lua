-- The read barrier: succeeds if the promise is still this one. Answers the end and the floor.
local refused, floor = refusal()
if refused then return refused end
local id, hash = last_entry()
return {'OK', id, hash, string.format('%d', floor)}
