"""Rights: who may do what with which groups and topics.

Begin with `rules`, the file that says it. `calls` is the one table from the calls of the public services to
what they need; `access` answers the question in a running process. Who somebody is, is no matter of this
package.
"""
