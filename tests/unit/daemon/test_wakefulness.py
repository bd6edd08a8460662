from omlxd.daemon.wakefulness import AwakeWhile


class Keeper:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def hold(self) -> None:
        self.calls.append("hold")

    def release(self) -> None:
        self.calls.append("release")

    def close(self) -> None:
        self.calls.append("close")


def test_the_machine_is_held_awake_once_while_anything_is_under_way() -> None:
    """T69"""
    keeper, open_requests = Keeper(), 0
    awake = AwakeWhile(keeper, lambda: open_requests > 0)
    awake.look()
    assert keeper.calls == []
    open_requests = 1
    awake.look()
    open_requests = 3
    awake.look()
    assert keeper.calls == ["hold"]
    open_requests = 0
    awake.look()
    awake.look()
    assert keeper.calls == ["hold", "release"]
    awake.close()
    assert keeper.calls[-1] == "close"


def test_where_nothing_keeps_awake_nothing_is_asked() -> None:
    AwakeWhile(None, lambda: 1 / 0 > 0).look()
