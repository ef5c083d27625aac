"""Types of the compiled module with simulated ranks, as cffi makes it from the public headers.

A test compares the names below with the compiled module's.
"""

from ._core import FFI, CData
from ._core import Lib as RealLib

class Lib(RealLib):
    PP_SIM_START: int
    PP_SIM_WAIT: int
    PP_SIM_TEST: int
    PP_SIM_INIT_BEGIN: int
    PP_SIM_FLUSH_BEGIN: int
    PP_SIM_DRAIN_BEGIN: int
    PP_SIM_FREE_BEGIN: int
    PP_SIM_CTX_FREE_BEGIN: int
    PP_SIM_CALL_WAIT: int
    PP_SIM_COLLECT: int
    PP_SIM_MORE: int
    PP_SIM_TIMED_OUT: int
    PP_SIM_AWAY_BEGIN: int
    PP_SIM_AWAY_END: int
    PP_SIM_STEP_ASIDE: int
    PP_SIM_PREDUCE_INIT_BEGIN: int
    PP_SIM_PREDUCE_START: int
    PP_LAYOUT_BLOCKS: int
    PP_LAYOUT_FROM_END: int
    PP_LAYOUT_IN_TURN: int
    PP_LAYOUT_COUNT: int
    PP_SIM_ROOM_MAX: int
    PP_PLANT_NONE: int
    PP_MEMORY_FENCED: int
    PP_FENCE_SHIFT: int
    PP_PLANT_LOST_START: int
    PP_PLANT_ROUND_TWICE: int
    PP_PLANT_LOST_DRAW: int
    PP_PLANT_NO_PATIENCE: int
    PP_PLANT_DEADLINE_TWICE: int
    PP_PLANT_LOST_EARLY: int
    PP_PLANT_COUNT: int
    PP_STALENESS_BINS: int
    PP_SCHEDULE_ACTIVATION: int
    PP_GROUPS_PLANT_NONE: int
    PP_GROUPS_PLANT_LOST_RELEASE: int
    PP_GROUPS_PLANT_OTHER_ORDER: int
    PP_GROUPS_PLANT_COUNT: int
    def pp_sim_do(self, sim: CData, rank: int, call: CData, /) -> int: ...
    def pp_sim_done(self, sim: CData, rank: int, status: CData, /) -> int: ...
    def pp_sim_requested_at(self, coll: CData, /) -> int: ...
    def pp_sim_count_from(self, coll: CData, flushes: int, requests: int, /) -> int: ...
    def pp_sim_wait_elsewhere(self, sim: CData, rank: int, waits: int, /) -> None: ...
    def pp_sim_interruptions(self, sim: CData, /) -> int: ...
    def pp_sim_ran_dead(self, sim: CData, /) -> int: ...
    def pp_sim_open(self, config: CData, sim: CData, /) -> int: ...
    def pp_sim_ctx(self, sim: CData, rank: int, /) -> CData: ...
    def pp_sim_allreduce(self, ctx: CData, config: CData, coll: CData, /) -> int: ...
    def pp_sim_preduce(self, ctx: CData, config: CData, handle: CData, /) -> int: ...
    def pp_sim_keep_groups(self, sim: CData, /) -> None: ...
    def pp_sim_group(self, sim: CData, /) -> CData: ...
    def pp_sim_kill(self, sim: CData, rank: int, time_ns: int, detect_ns: int, /) -> int: ...
    def pp_sim_watch(self, sim: CData, rank: int, handle: CData, /) -> int: ...
    def pp_sim_unwatch(self, sim: CData, rank: int, handle: CData, /) -> None: ...
    def pp_sim_handles(self, sim: CData, rank: int, /) -> int: ...
    def pp_sim_end_script(self, sim: CData, rank: int, /) -> int: ...
    def pp_sim_advance(self, sim: CData, until_ns: int, rank: CData, /) -> int: ...
    def pp_sim_set_now(self, sim: CData, time_ns: int, /) -> int: ...
    def pp_sim_now_ns(self, sim: CData, /) -> int: ...
    def pp_sim_next_ns(self, sim: CData, /) -> int: ...
    def pp_sim_drawn(
        self, seed: int, handle: int, round: int, ranks: int, place: int, /
    ) -> int: ...
    def pp_sim_coverage(self, sim: CData, coverage: CData, /) -> None: ...
    def pp_sim_free(self, sim: CData, /) -> None: ...
    def pp_sim_schedule(
        self,
        schedule: int,
        ranks: int,
        size: int,
        segments: int,
        seed: int,
        network: CData,
        finished_ns: CData,
        traffic: CData,
        /,
    ) -> int: ...
    def pp_sim_schedule_dump(
        self, schedule: int, ranks: int, size: int, form: int, text: CData, /
    ) -> int: ...
    def pp_sim_groups_open(
        self, plan: CData, table: CData, node_of: CData, groups: CData, /
    ) -> int: ...
    def pp_sim_groups_event(
        self, groups: CData, event: int, rank: int, number: int, now_ns: int, actions: CData, /
    ) -> int: ...
    def pp_sim_groups_give(
        self, groups: CData, rank: int, members: CData, count: int, /
    ) -> int: ...
    def pp_sim_groups_asks(self, groups: CData, rank: int, /) -> int: ...
    def pp_sim_groups_untangle(
        self, groups: CData, count: int, now_ns: int, actions: CData, /
    ) -> int: ...
    def pp_sim_groups_action(self, groups: CData, index: int, /) -> CData: ...
    def pp_sim_groups_move(self, groups: CData, /) -> int: ...
    def pp_sim_groups_alive(self, groups: CData, /) -> int: ...
    def pp_sim_groups_most(self, groups: CData, /) -> int: ...
    def pp_sim_groups_free(self, groups: CData, /) -> None: ...
    def pp_sim_groups_static(
        self,
        nodes: int,
        per_node: int,
        phase: int,
        rank: int,
        members: CData,
        count: CData,
        /,
    ) -> int: ...
    def pp_sim_groups_weights(
        self,
        kind: int,
        alpha: float,
        count: int,
        iterations: CData,
        weights: CData,
        initial: CData,
        /,
    ) -> int: ...

ffi: FFI
lib: Lib
