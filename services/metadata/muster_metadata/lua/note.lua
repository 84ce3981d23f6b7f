-- Notes the run in which this node votes, also where nobody writes: without it a restart is not known.
local reason, _, _, _, _, mark = abstention()
if reason then return reason end
note_run(mark)
return {'OK'}
