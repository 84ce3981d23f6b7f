"""Members of classic groups: what each asks for, what it keeps, and how it proves that it is who it says.

Begin with `member`. A new field of a member is named in `terms` alone; records, snapshots and loads carry it
from there.
"""
