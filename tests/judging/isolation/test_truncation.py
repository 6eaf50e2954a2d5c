"""Where Landlock does not stop a file from being truncated as it is opened, the filter of calls does."""

import os

from pipelinerl.judging.isolation import seccomp
from pipelinerl.judging.isolation.privileges import no_new_privileges

REFUSED = 3
DONE = 4


def opened(file, may_truncate):
    """Returns the status of a process that opens the file to truncate it, after it has read it."""
    child = os.fork()
    if not child:
        status = REFUSED
        try:
            no_new_privileges()
            seccomp.restrict(seccomp.program(may_truncate=may_truncate))
            os.close(os.open(file, os.O_RDONLY))
            os.open(file, os.O_RDONLY | os.O_TRUNC)
            status = DONE
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_file_that_can_be_read_is_not_truncated(tmp_path):
    file = tmp_path / "library"
    file.write_text("code")
    assert opened(file, may_truncate=False) == REFUSED
    assert file.read_text() == "code"
    assert opened(file, may_truncate=True) == DONE
    assert file.read_text() == ""
