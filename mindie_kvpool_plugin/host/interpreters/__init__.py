"""Which Python interpreters the host's processes run, and what our hooks find in each.

``users`` says as whom to look, ``launches`` how each process gets its interpreter, ``probe`` asks one by running
``snippet`` in it, ``causes`` says why hooks will not be set, ``survey`` does all of it.  Nothing of the host is
imported or started.
"""

from mindie_kvpool_plugin.host.interpreters.causes import Problem
from mindie_kvpool_plugin.host.interpreters.probe import Interpreter
from mindie_kvpool_plugin.host.interpreters.survey import Side, Survey, survey
from mindie_kvpool_plugin.host.interpreters.users import User, UserError

__all__ = ["Interpreter", "Problem", "Side", "Survey", "User", "UserError", "survey"]
