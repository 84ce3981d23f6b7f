-- The read barrier: does the promise still stand? Answers the end and the floor.
local refused, floor = refusal()
if refused then return refused end
local id, hash = last_entry()
return {'OK', id, hash, string.format('%d', floor)}
