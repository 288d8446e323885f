"""``mindie-kvpool why``: what ranks and scheduler say of a prompt, put together and told."""

import json

import pytest
from click.testing import CliRunner

from mindie_kvpool_plugin.check.messages import LANGUAGES, has_text, words
from mindie_kvpool_plugin.cli import why as why_command
from mindie_kvpool_plugin.cli.explain import PLACEHOLDERS
from mindie_kvpool_plugin.cli.main import main
from mindie_kvpool_plugin.cli.why_join import stories
from mindie_kvpool_plugin.observability import causes
from mindie_kvpool_plugin.observability.questions import Reply

AT_S = 1_700_000_000.0


def verdict(cause=causes.EVICTED, request="endpoint_common_7", reused=2, **more):
    base = {
        "at_s": AT_S,
        "request_id": request,
        "sequence_id": 70,
        "prompt_tokens": 90,
        "is_whole": True,
        "full_blocks": 5,
        "computed": 1,
        "promised": 3,
        "arrived": reused,
        "reused": reused,
        "cause": cause,
        "facts": {},
        "last_hash": "42",
    }
    return base | more


def worker(*requests, rank=0, **more):
    return {
        "role": "worker",
        "rank": rank,
        "dp_rank": 0,
        "pool_file": "/etc/pool.json",
        "block_size": 16,
        "capacity": 256,
        "kept": len(requests),
        "lost_records": 0,
        "remembered_blocks": 5,
        "remembered_since_s": AT_S - 60,
        "requests": list(requests),
        **more,
    }


def scheduler(outcome="answered", at_s=AT_S - 0.1, **more):
    lookup = {"at_s": at_s, "asked": 4, "found": 2, "took_s": 0.6, "outcome": outcome, "times": 1}
    return {"role": "scheduler", "lookups": {"42": lookup | more}}


@pytest.fixture
def ask(monkeypatch):
    """Runs the command against given parts; of each process one list."""

    def run(*processes, args=(), others=()):
        def answers(question):
            if question["ask"] == "stats":
                return [Reply("1.sock", {"parts": [{"pool_file": "/etc/pool.json"}]})]
            request = question.get("request")
            replies = []
            for number, parts in enumerate(processes):
                told = [
                    {**part, "requests": [each for each in part["requests"] if request in {None, each["request_id"]}]}
                    if "requests" in part
                    else part
                    for part in parts
                ]
                replies.append(Reply(f"{number}.sock", {"pid": number, "parts": told}))
            return [*replies, *others]

        monkeypatch.setattr(why_command, "ask_all", answers)
        return CliRunner().invoke(main, ["why", *args, "--lang", "en"], prog_name="mindie-kvpool")

    return run


# -- putting together --------------------------------------------------------------------------------------


def cause_of(*parts):
    found = stories([{"parts": [part]} for part in parts])
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize(
    ("said", "best"),
    [
        ([causes.OTHER_RANK, causes.GET_FAILED], 1),
        ([causes.NOT_ANNOUNCED, causes.QUEUE_FULL], 1),
        ([causes.QUEUE_FULL, causes.ELSEWHERE], 0),
        ([causes.NEVER_STORED, causes.WITHDRAWN], 1),
        ([causes.UNKNOWN, causes.ELSEWHERE], 1),
        ([causes.EVICTED, causes.EVICTED], 0),
    ],
)
def test_the_rank_that_knows_most_decides(said, best):
    """All of them are told."""
    story = cause_of(*[worker(verdict(cause), rank=rank) for rank, cause in enumerate(said)])
    assert story.cause == said[best]
    assert story.told.identity["rank"] == best
    assert [part.said["cause"] for part in story.parts] == said


def test_of_several_that_know_the_poorest_decides():
    """It had the fewest blocks."""
    story = cause_of(worker(verdict(causes.GET_FAILED, arrived=3)), worker(verdict(causes.EVICTED, arrived=2), rank=1))
    assert story.cause == causes.EVICTED


@pytest.mark.parametrize(
    ("outcome", "at_s", "cause"),
    [
        ("late", AT_S - 1, causes.LOOKUP_LATE),
        ("left_alone", AT_S - 1, causes.LOOKUP_LEFT_ALONE),
        ("answered", AT_S - 1, causes.NOT_PROMISED),
        ("late", AT_S + 1, causes.NOT_PROMISED),
        ("late", AT_S - 10_000, causes.NOT_PROMISED),
    ],
)
def test_the_schedulers_answer_says_why_a_block_was_not_promised(outcome, at_s, cause):
    """Unless it is another prompt's: later, or long ago."""
    assert cause_of(worker(verdict(causes.NOT_PROMISED)), scheduler(outcome, at_s) | {"requests": []}).cause == cause


@pytest.mark.parametrize(("ago_s", "cause"), [(0.05, causes.NOT_YET_STORED), (0.2, causes.NOT_PROMISED)])
def test_a_block_that_came_after_the_lookup_was_not_stored_yet(ago_s, cause):
    """The scheduler asked 0.1 s before the batch began."""
    assert cause_of(worker(verdict(causes.NOT_PROMISED, facts={"ago_s": ago_s})), scheduler()).cause == cause


def test_a_lookup_changes_no_other_cause():
    """A block that is not there would not have come in time either."""
    story = cause_of(worker(verdict(causes.EVICTED)), scheduler("late"))
    assert (story.cause, story.lookup["outcome"]) == (causes.EVICTED, "late")


def test_a_prompt_that_was_preempted_is_told_twice():
    """Each time with the ranks' words about that time."""
    first, second = verdict(causes.EVICTED), verdict(causes.COMPLETE, at_s=AT_S + 5, reused=5, arrived=5)
    found = stories([{"parts": [worker(first, second), worker(first, second, rank=1)]}])
    assert [(story.cause, len(story.parts)) for story in found] == [(causes.EVICTED, 2), (causes.COMPLETE, 2)]


def test_equal_ids_of_two_services_are_two_prompts():
    """Every service counts its requests from 0."""
    other = worker(verdict(causes.COMPLETE, reused=5)) | {"pool_file": "/etc/other.json"}
    assert len(stories([{"parts": [worker(verdict())]}, {"parts": [other]}])) == 2


# -- telling -----------------------------------------------------------------------------------------------


def test_one_request_is_told_block_by_block(ask):
    """With what to do, and every rank's word where there are several."""
    result = ask(
        [worker(verdict(causes.OTHER_RANK, arrived=3))],
        [worker(verdict(causes.EVICTED, facts={"ago_s": 90.0}), rank=1)],
        [scheduler()],
        args=["endpoint_common_7"],
    )
    assert result.exit_code == 0
    assert "Request endpoint_common_7 (sequence 70)" in result.output
    assert "90 tokens: 5 full blocks of 16, and 10 tokens that fill none" in result.output
    assert "Block 2 (tokens 32 to 47) ended the prefix: evicted (evicted from the pool)" in result.output
    assert "90 s earlier" in result.output
    assert "What to do: Give the pool more memory" in result.output
    assert "rank 0     3 blocks: other_rank" in result.output
    assert "asked for 4 blocks, was told of 2 after 600 ms" in result.output
    assert "{" not in result.output


def test_a_summary_counts_causes_and_lists_the_last_prompts(ask):
    """Tokens that were computed are shared out among the causes."""
    prompts = [
        verdict(causes.NEVER_STORED, request="a", reused=1, at_s=AT_S),
        verdict(causes.QUEUE_FULL, request="b", reused=4, at_s=AT_S + 1),
        verdict(causes.COMPLETE, request="c", reused=5, at_s=AT_S + 2),
    ]
    result = ask([worker(*prompts)], args=["--last", "2"])
    assert result.exit_code == 0
    assert (
        "Last 3 prompts, 270 tokens: 17.8 % found in HBM, 41.5 % loaded from the pool, 40.7 % computed" in result.output
    )
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in result.output.splitlines() if "│" in line]
    assert lines[0] == ["never_stored", "1", "74", "67.3 %", "new content"]
    assert [line[0] for line in lines[-2:]] == ["b", "c"]


def test_json_has_every_rank_and_the_lookup(ask):
    """As programs read it; --last bounds it."""
    result = ask(
        [worker(verdict(request="a"), verdict(request="b")), scheduler()], args=["--format", "json", "--last=1"]
    )
    (story,) = json.loads(result.output)
    assert (story["request_id"], story["cause"], story["loaded"], story["tokens_computed"]) == ("b", "evicted", 1, 58)
    assert story["ranks"][0]["identity"]["pool_file"] == "/etc/pool.json"
    assert story["lookup"]["found"] == 2


def test_an_unknown_request_is_told_with_one_that_is_known(ask):
    """Exit status 1."""
    result = ask([worker(verdict())], args=["nonsense"])
    assert result.exit_code == 1
    assert "no request nonsense among the last 1 prompts of 1 ranks" in result.output
    assert "endpoint_common_7" in result.output
    assert "why_requests (256)" in result.output


def test_no_process_and_a_process_that_remembers_nothing(ask):
    """Exit status 2, each with its fix."""
    result = ask()
    assert result.exit_code == 2
    assert "no process of this machine answers" in result.output
    result = ask(others=[Reply("1.sock", {"error": "nothing is known of 'why'", "known": ["stats"]})])
    assert result.exit_code == 2
    assert 'write "why_requests": 256 into the kv_pool section of /etc/pool.json and restart' in result.output


def test_a_process_that_does_not_answer_is_named(ask):
    """The others are told."""
    result = ask([worker(verdict())], others=[Reply("9.sock", trouble="no answer within 2 s")])
    assert result.exit_code == 0
    assert "9.sock did not answer: no answer within 2 s" in result.output


def test_workers_that_have_served_nothing_yet(ask):
    """Not an error."""
    result = ask([worker()])
    assert result.exit_code == 0
    assert "remember no prompt yet" in result.output


def test_lost_records_are_told(ask):
    """Causes may be missing then."""
    assert "3 records were lost" in ask([worker(verdict(), lost_records=3)]).output


# -- texts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("cause", causes.CAUSES)
def test_every_cause_is_explained_in_both_languages(cause, lang):
    """What it means and what to do; nothing is left open but what belongs to one prompt."""
    assert all(has_text(f"why.{cause}.{part}", lang) for part in ("title", "why", "todo"))
    result = CliRunner().invoke(main, ["explain", cause, "--lang", lang])
    assert result.exit_code == 0
    assert words(f"why.{cause}.title", lang) in result.output
    assert "{" not in result.output
    assert cause in CliRunner().invoke(main, ["explain", "--lang", lang]).output


def test_a_mistyped_cause_gets_a_suggestion():
    """As codes do."""
    assert "did you mean queue_full?" in CliRunner().invoke(main, ["explain", "queue_ful", "--lang", "en"]).output


@pytest.mark.parametrize("cause", causes.CAUSES)
def test_a_story_leaves_no_placeholder_open(ask, cause):
    """Whatever is known of it."""
    facts = {"ago_s": 1.5, "since_s": AT_S, "adapter": "poet", "namespace": "b", "fingerprint": "ff"}
    output = ask([worker(verdict(cause, facts=facts)), scheduler()], args=["endpoint_common_7"]).output
    assert cause in output
    assert not [name for name in PLACEHOLDERS if f"{{{name}}}" in output]
