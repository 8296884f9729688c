"""Which frames are the user's."""

from estimator.frames import users

OWN = ("/home/u/train.py", 3, "main")
PACKAGE = ("/v/site-packages/torch/nn/x.py", 1, "f")
TRACER = ("/opt/gpumem/estimator/tracer/recorder.py", 9, "__call__")


def test_frames_of_packages_are_left_out_where_there_are_others():
    assert users((PACKAGE, TRACER, OWN)) == [OWN]
    assert users((TRACER, PACKAGE)) == [PACKAGE]
    assert users(()) == []
