"""The end of a process in which a part has left a thread that does not end."""

import os
import sys
import threading

import pytest

from pipelinerl.process import end_in_time


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks")
@pytest.mark.parametrize("status", [0, 1, 2])
def test_a_thread_that_does_not_end_keeps_no_process(status):
    child = os.fork()
    if child == 0:
        threading.Thread(target=threading.Event().wait).start()
        end_in_time(status, within_s=0.0)
        threading._shutdown()  # as an interpreter that ends waits for its threads
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == status
