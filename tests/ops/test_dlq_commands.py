"""postbus dlq: what it prints, what it changes, and its exit codes."""

import asyncio
import contextlib
import json
import os
import sqlite3
import subprocess
from pathlib import Path

import pytest

from postbus import DLQInspector, Event, EventBus, EventStatus, SQLiteStore
from postbus.events import Burial, DeadLetter, GlobalSequence, Progress, SubscriberId
from postbus.ops.cli import main
from tests.contracts.steps import BEGINNING
from tests.ops.commands import ESCAPE, POSTBUS, dead_letter_count, run, stored, terminal


@pytest.fixture
def dead_letter(database: Path) -> DeadLetter:
    """One more dead letter in the file: that of a durable subscriber, for the event "sent"."""
    return asyncio.run(_bury_sent(database))


async def _bury_sent(path: Path) -> DeadLetter:
    subscriber_id = SubscriberId("projection:mails")
    async with SQLiteStore(path) as store:
        owner = await store.checkpoints.claim(subscriber_id, BEGINNING)
        event = await store.get("sent")
        progress = Progress(
            subscriber_id=subscriber_id,
            epoch=owner.epoch,
            position=event.global_sequence or GlobalSequence(0),
            burials=[Burial(event, ["first", f"no [table]{ESCAPE}[2J\nsecond line"])],
        )
        await store.checkpoints.save(progress)
        return (await store.dead_letters.page(1, 0, subscriber_id)).events[0]


def _found(path: Path, dead_letter_id: str) -> DeadLetter:
    async def get() -> DeadLetter:
        async with SQLiteStore(path) as store:
            return await DLQInspector(store).get(dead_letter_id)

    return asyncio.run(get())


def _wanted_count(path: Path) -> int:
    async def count() -> int:
        async with SQLiteStore(path) as store:
            return len(await store.dead_letters.wanted_retries(SubscriberId("projection:mails"), 10))

    return asyncio.run(count())


class TestList:
    def test_newest_first_with_type_attempts_and_error(
        self, database: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["dlq", "ls", "--url", str(database)]) == 0

        first, facts, *_, last = capsys.readouterr().out.splitlines()
        assert first == "mail-3  mail.queued"
        assert "1 attempt  ValueError: no [address] in mail-3" in facts
        assert last == "1 to 3 of 3 dead letters, newest first"

    def test_json_has_whole_events_and_the_total(
        self, database: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["dlq", "ls", "--json", "--limit", "1", "--offset", "1", "--url", str(database)]) == 0

        page = json.loads(capsys.readouterr().out)
        assert (page["total"], page["limit"], page["offset"]) == (3, 1, 1)
        [event] = page["events"]
        assert (event["id"], event["type"], event["payload"]) == ("mail-2", "mail.queued", {"n": 2})
        assert (event["status"], event["metadata"]) == ("dlq", {"source": "web"})
        assert event["errors"] == json.loads(event["last_error"])

    def test_beyond_the_end_there_is_nothing(
        self, database: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["dlq", "ls", "--offset", "3", "--url", str(database)]) == 0
        assert capsys.readouterr().out == "no more dead letters, 3 in all\n"

    def test_an_empty_list_is_an_answer(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        url = str(tmp_path / "new.db")
        main(["publish", "a", "--url", url])
        capsys.readouterr()

        assert main(["dlq", "ls", "--url", url]) == 0
        assert main(["dlq", "ls", "--json", "--url", url]) == 0
        words, _, page = capsys.readouterr().out.partition("\n")
        assert words == "no dead letters"
        assert json.loads(page) == {"total": 0, "limit": 100, "offset": 0, "events": []}

    @pytest.mark.parametrize("option", ["--limit=-1", "--offset=-1", "--limit=many"])
    def test_a_bad_number_is_a_usage_error(self, database: Path, option: str) -> None:
        assert main(["dlq", "ls", option, "--url", str(database)]) == 2

    def test_no_error_can_steer_the_terminal(
        self, database: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        main(["dlq", "ls", "--url", str(database)])
        main(["dlq", "show", "mail-1", "--url", str(database)])
        output = capsys.readouterr().out

        assert ESCAPE not in output
        assert r"\x1b[2J" in output

    def test_a_reader_that_leaves_early_causes_no_traceback(self, database: Path) -> None:
        command = subprocess.list2cmdline([*POSTBUS, "dlq", "ls", "--json", "--url", str(database)])
        finished = subprocess.run(
            f"{command} | true", shell=True, capture_output=True, text=True, check=False
        )

        assert "Traceback" not in finished.stderr


class TestListOfBothKinds:
    def test_a_subscribers_dead_letter_is_listed_with_who_gave_up_on_what(
        self, database: Path, dead_letter: DeadLetter, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["dlq", "ls", "--url", str(database)]) == 0

        first, facts, *_, last = capsys.readouterr().out.splitlines()
        assert first == f"{dead_letter.dead_letter_id}  mail.sent  subscriber projection:mails  event sent"
        assert r"2 attempts  no [table]\x1b[2J" in facts
        assert last == "1 to 4 of 4 dead letters, newest first"

    def test_those_of_one_subscriber(
        self, database: Path, dead_letter: DeadLetter, capsys: pytest.CaptureFixture[str]
    ) -> None:
        url = str(database)
        assert main(["dlq", "ls", "--subscriber", "projection:mails", "--json", "--url", url]) == 0

        page = json.loads(capsys.readouterr().out)
        [found] = page["events"]
        assert (page["total"], found["id"], found["subscriber_id"]) == (1, "sent", "projection:mails")
        assert found["dead_letter_id"] == dead_letter.dead_letter_id
        assert main(["dlq", "ls", "--subscriber", "nobody", "--url", url]) == 0
        assert capsys.readouterr().out == "no dead letters\n"

    def test_a_subscriber_without_a_name_is_an_error(
        self, database: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["dlq", "ls", "--subscriber", "", "--url", str(database)]) == 1
        assert "subscriber id '' is empty" in capsys.readouterr().err


class TestShow:
    def test_the_whole_story(self, database: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["dlq", "show", "mail-2", "--url", str(database)]) == 0

        output = capsys.readouterr().out
        for part in (
            "mail-2",
            "mail.queued",
            "source=web",
            '"n": 2',
            "no [address] in mail-2",
            "second line",
        ):
            assert part in output

    def test_json(self, database: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["dlq", "show", "mail-2", "--json", "--url", str(database)]) == 0

        event = json.loads(capsys.readouterr().out)
        assert event["id"] == "mail-2"
        assert event["retry_count"] == len(event["errors"]) == 1

    @pytest.mark.parametrize(
        ("event_id", "reason"), [("nix", "no event has the id"), ("sent", "not a dead letter")]
    )
    def test_what_is_no_dead_letter_ends_with_3(
        self, database: Path, capsys: pytest.CaptureFixture[str], event_id: str, reason: str
    ) -> None:
        assert main(["dlq", "show", event_id, "--url", str(database)]) == 3
        assert reason in capsys.readouterr().err

    @pytest.mark.parametrize("is_by_event_id", [True, False])
    def test_a_subscribers_dead_letter_with_its_story(
        self,
        database: Path,
        dead_letter: DeadLetter,
        capsys: pytest.CaptureFixture[str],
        is_by_event_id: bool,
    ) -> None:
        shown = "sent" if is_by_event_id else dead_letter.dead_letter_id
        main(["dlq", "resolve", "sent", "--by", "anna", "--notes", "by hand", "--url", str(database)])
        capsys.readouterr()

        assert main(["dlq", "show", shown, "--url", str(database)]) == 0
        output = capsys.readouterr().out
        for part in (
            dead_letter.dead_letter_id,
            "projection:mails",
            "by anna",
            "by hand",
            "first",
            "no [table]",
        ):
            assert part in output
        assert ESCAPE not in output


class TestRetry:
    def test_one_begins_anew(self, database: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["dlq", "retry", "mail-2", "--url", str(database)]) == 0

        event = stored(database, "mail-2")
        assert capsys.readouterr().out == "retried 1 dead letter\n"
        assert (event.status, event.retry_count, event.last_error) == (EventStatus.PENDING, 0, None)
        assert dead_letter_count(database) == 2

    def test_all_begin_anew_and_then_none_is_left(
        self, database: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        codes = [main(["dlq", "retry", "--all", "--json", "--url", str(database)]) for _ in range(2)]

        assert codes == [0, 3]
        assert '"retried": 3' in capsys.readouterr().out
        assert dead_letter_count(database) == 0

    def test_an_id_that_does_not_match_spoils_no_other(
        self, database: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["dlq", "retry", "mail-1", "nix", "sent", "mail-3", "--url", str(database)]) == 3

        output = capsys.readouterr()
        assert output.out == "retried 2 dead letters\n"
        assert len(output.err.splitlines()) == 2
        assert dead_letter_count(database) == 1

    @pytest.mark.parametrize("arguments", [(), ("mail-1", "--all")])
    def test_either_ids_or_all(self, database: Path, arguments: tuple[str, ...]) -> None:
        assert main(["dlq", "retry", *arguments, "--url", str(database)]) == 2
        assert dead_letter_count(database) == 3

    def test_a_running_bus_takes_it_up(self, database: Path) -> None:
        """The bus is in this process, the command in another."""

        async def serve() -> str:
            bus = EventBus(database)
            arrived: asyncio.Future[str] = asyncio.get_running_loop().create_future()

            @bus.on("mail.*")
            async def send(event: Event) -> None:
                arrived.set_result(event.id)

            async with bus:
                await asyncio.to_thread(run, "dlq", "retry", "mail-2", "--url", database)
                return await asyncio.wait_for(arrived, 30)

        assert asyncio.run(serve()) == "mail-2"

    def test_a_subscribers_dead_letter_is_marked_for_one_more_attempt(
        self, database: Path, dead_letter: DeadLetter, capsys: pytest.CaptureFixture[str]
    ) -> None:
        before = _wanted_count(database)

        assert main(["dlq", "retry", dead_letter.dead_letter_id, "--url", str(database)]) == 0
        assert capsys.readouterr().out == "retried 1 dead letter\n"
        assert (before, _wanted_count(database), dead_letter_count(database)) == (0, 1, 4)

    def test_all_of_one_subscriber(
        self, database: Path, dead_letter: DeadLetter, capsys: pytest.CaptureFixture[str]
    ) -> None:
        arguments = ["dlq", "retry", "--all", "--url", str(database), "--subscriber"]

        assert main([*arguments, "nobody"]) == 3
        assert main([*arguments, "projection:mails"]) == 0
        assert capsys.readouterr().out == "retried 0 dead letters\nretried 1 dead letter\n"
        assert stored(database, "mail-1").status is EventStatus.DLQ

    def test_all_of_one_event_type(
        self, database: Path, dead_letter: DeadLetter, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """With a subscriber only those that are both."""
        arguments = ["dlq", "retry", "--all", "--url", str(database), "--type"]

        assert main([*arguments, "mail.nix"]) == 3
        assert main([*arguments, "mail.queued", "--subscriber", "projection:mails"]) == 3
        assert main([*arguments, "mail.sent"]) == 0
        assert stored(database, "mail-1").status is EventStatus.DLQ
        assert main([*arguments, "mail.queued"]) == 0
        assert capsys.readouterr().out.splitlines() == [
            "retried 0 dead letters",
            "retried 0 dead letters",
            "retried 1 dead letter",
            "retried 3 dead letters",
        ]

    def test_a_type_needs_all(self, database: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["dlq", "retry", "mail-1", "--type", "mail.queued", "--url", str(database)]) == 2
        assert "--type needs --all" in capsys.readouterr().err
        assert dead_letter_count(database) == 3

    def test_a_pattern_is_no_type(self, database: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["dlq", "retry", "--all", "--type", "mail.*", "--url", str(database)]) == 1
        assert "which only patterns may" in capsys.readouterr().err
        assert dead_letter_count(database) == 3

    def test_a_subscriber_needs_all(self, database: Path) -> None:
        assert main(["dlq", "retry", "mail-1", "--subscriber", "x", "--url", str(database)]) == 2
        assert dead_letter_count(database) == 3


class TestResolve:
    def test_it_leaves_the_list_and_stays_on_record(
        self, database: Path, dead_letter: DeadLetter, capsys: pytest.CaptureFixture[str]
    ) -> None:
        ids = ["mail-1", dead_letter.dead_letter_id]
        code = main(["dlq", "resolve", *ids, "--by", "anna", "--notes", "by hand", "--url", str(database)])

        assert (code, capsys.readouterr().out) == (0, "resolved 2 dead letters\n")
        assert [(_found(database, each).resolved_by, _found(database, each).notes) for each in ids] == [
            ("anna", "by hand")
        ] * 2
        assert dead_letter_count(database) == 2

    def test_what_is_no_dead_letter_spoils_no_other(
        self, database: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        arguments = ["dlq", "resolve", "nix", "mail-1", "sent", "--by", "anna", "--url", str(database)]

        assert main([*arguments, "--json"]) == 3
        output = capsys.readouterr()
        assert json.loads(output.out) == {"resolved": 1}
        assert len(output.err.splitlines()) == 2
        assert _found(database, "mail-1").notes is None

    @pytest.mark.parametrize(
        ("arguments", "code"), [(["mail-1"], 2), (["--by", "anna"], 2), (["mail-1", "--by", ""], 1)]
    )
    def test_somebody_answers_for_something(self, database: Path, arguments: list[str], code: int) -> None:
        assert main(["dlq", "resolve", *arguments, "--url", str(database)]) == code
        assert dead_letter_count(database) == 3


class TestPurge:
    def test_yes_deletes_for_good(self, database: Path, capsys: pytest.CaptureFixture[str]) -> None:
        arguments = ["dlq", "purge", "--older-than-days", "0", "--yes", "--url", str(database)]

        assert main(arguments) == 0
        assert main([*arguments, "--json"]) == 3
        assert capsys.readouterr().out == 'deleted 3 dead letters\n{\n  "deleted": 0\n}\n'
        with contextlib.closing(sqlite3.connect(database)) as connection:
            assert connection.execute("SELECT id FROM events").fetchall() == [("sent",)]

    def test_a_subscribers_goes_and_its_event_stays(self, database: Path, dead_letter: DeadLetter) -> None:
        assert main(["dlq", "purge", "--older-than-days", "0", "--yes", "--url", str(database)]) == 0
        assert dead_letter_count(database) == 0
        assert stored(database, "sent").status is EventStatus.DONE

    def test_young_ones_stay(self, database: Path) -> None:
        assert main(["dlq", "purge", "--older-than-days", "0.5", "--yes", "--url", str(database)]) == 3
        assert dead_letter_count(database) == 3

    def test_off_a_terminal_it_needs_yes(self, database: Path) -> None:
        finished = run("dlq", "purge", "--older-than-days", 0, "--url", database)

        assert finished.returncode == 2
        assert "--yes" in finished.stderr
        assert dead_letter_count(database) == 3

    @pytest.mark.parametrize(("answer", "code", "left"), [("n", 1, 3), ("y", 0, 0)])
    def test_on_a_terminal_it_asks(self, database: Path, answer: str, code: int, left: int) -> None:
        with terminal() as (ours, theirs):
            os.write(ours, f"{answer}\n".encode())
            finished = run("dlq", "purge", "--older-than-days", 0, "--url", database, stdin=theirs)

        assert finished.returncode == code
        assert finished.stderr.startswith(f"Delete the dead letters of {database}")
        assert dead_letter_count(database) == left

    @pytest.mark.parametrize(("days", "code"), [("-1", 2), ("soon", 2), ("nan", 1), ("inf", 1)])
    def test_a_bad_age_deletes_nothing(self, database: Path, days: str, code: int) -> None:
        assert main(["dlq", "purge", f"--older-than-days={days}", "--yes", "--url", str(database)]) == code
        assert dead_letter_count(database) == 3
