"""Types of the compiled module, as cffi makes it from csrc/include/pypartial.h.

A test compares the names below with the compiled module's.
"""

from collections.abc import Callable, Iterator
from typing import Any

class CData:
    """A C value: pointer, struct or array. Its items and fields are converted by cffi."""

    def __getattr__(self, name: str) -> Any: ...
    def __setattr__(self, name: str, value: Any) -> None: ...
    def __getitem__(self, index: int) -> Any: ...
    def __setitem__(self, index: int, value: Any) -> None: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __len__(self) -> int: ...

class Buffer:
    """A view of C memory."""

    def __getitem__(self, index: slice) -> bytes: ...
    def __len__(self) -> int: ...

class CField:
    offset: int
    type: CType

class CType:
    cname: str
    fields: list[tuple[str, CField]]

class FFI:
    NULL: CData
    def new(self, cdecl: str, init: Any = ..., /) -> CData: ...
    def cast(self, cdecl: str, value: Any, /) -> CData: ...
    def string(self, cdata: CData, maxlen: int = ..., /) -> bytes: ...
    def buffer(self, cdata: CData, size: int = ..., /) -> Buffer: ...
    def unpack(self, cdata: CData, length: int, /) -> list[Any]: ...
    def sizeof(self, cdecl: str | CData, /) -> int: ...
    def typeof(self, cdecl: str, /) -> CType: ...
    def gc(self, cdata: CData, destructor: Callable[[CData], None], /) -> CData: ...

class Lib:
    PP_OK: int
    PP_PENDING: int
    PP_NOTE: int
    PP_ERR_ARGUMENT: int
    PP_ERR_STATE: int
    PP_ERR_MISMATCH: int
    PP_ERR_THREAD_LEVEL: int
    PP_ERR_PEER_FAILED: int
    PP_ERR_MEMORY: int
    PP_ERR_MPI: int
    PP_ERR_INTERNAL: int
    PP_INT8: int
    PP_INT16: int
    PP_INT32: int
    PP_INT64: int
    PP_UINT8: int
    PP_UINT16: int
    PP_UINT32: int
    PP_UINT64: int
    PP_FLOAT16: int
    PP_BFLOAT16: int
    PP_FLOAT32: int
    PP_FLOAT64: int
    PP_LONGDOUBLE: int
    PP_COMPLEX64: int
    PP_COMPLEX128: int
    PP_CLONGDOUBLE: int
    PP_BOOL: int
    PP_TYPE_COUNT: int
    PP_SUM: int
    PP_PROD: int
    PP_MIN: int
    PP_MAX: int
    PP_LAND: int
    PP_LOR: int
    PP_LXOR: int
    PP_BAND: int
    PP_BOR: int
    PP_BXOR: int
    PP_OP_COUNT: int
    PP_FIRST_OF: int
    PP_QUORUM: int
    PP_POLICY_COUNT: int
    PP_LATEST: int
    PP_DELIVER_SUM: int
    PP_EACH: int
    PP_DELIVER_COUNT: int
    PP_CAUSE_POLICY: int
    PP_CAUSE_DEPARTED: int
    PP_CAUSE_DEADLINE: int
    PP_CAUSE_FLUSH: int
    PP_MEMORY_HOST: int
    PP_AVERAGE_NONE: int
    PP_AVERAGE_SIZE: int
    PP_AVERAGE_CONTRIBUTORS: int
    PP_AVERAGE_CONTRIBUTIONS: int
    PP_ALGORITHM_AUTO: int
    PP_ALGORITHM_FIRST: int
    PP_SHARED_MEMORY: int
    PP_LINK_NODE: int
    PP_LINK_NETWORK: int
    PP_LINK_KINDS: int
    PP_SWITCHES_MAX: int
    PP_REASON_ASKED: int
    PP_REASON_SHARED_MEMORY: int
    PP_REASON_DEFAULTS: int
    PP_REASON_MODEL: int
    PP_REASON_MEASURED: int
    PP_REASON_COUNT: int
    PP_PATH_AUTO: int
    PP_PATH_MPI: int
    PP_PROGRESS_THREAD: int
    PP_PROGRESS_CALLER: int
    PP_CONTRIBUTORS_MAX: int
    PP_SLICE_US: int
    PP_CONTRIBUTORS_WORDS: int
    PP_COMPUTING: int
    PP_WAITING: int
    PP_IN_CALL: int
    PP_GENERATOR_RANDOM: int
    PP_GENERATOR_SMART: int
    PP_GENERATOR_CONTROLLER: int
    PP_GENERATOR_TABLE: int
    PP_GENERATOR_GIVEN: int
    PP_GENERATOR_COUNT: int
    PP_WEIGHTS_CONSTANT: int
    PP_WEIGHTS_CLOSEST: int
    PP_WEIGHTS_INITIAL: int
    PP_WEIGHTS_COUNT: int
    PP_BACKEND_AUTO: int
    PP_BACKEND_NODE: int
    PP_BACKEND_SCHEDULE: int
    PP_BACKEND_COMM: int
    PP_BACKEND_COUNT: int
    PP_GROUPS_IN_CALL: int
    PP_GROUPS_FLUSHES: int
    PP_GROUPS_FREES: int
    PP_GROUPS_OUT: int
    PP_GROUPS_START: int
    PP_GROUPS_FINISH: int
    PP_GROUPS_LEAVE: int
    PP_GROUPS_BACK: int
    PP_GROUPS_BEGIN: int
    PP_GROUPS_COMPLETE: int
    PP_GROUPS_ALONE: int
    PP_GROUPS_FLUSH: int
    PP_GROUPS_END: int
    PP_GROUPS_DIFFER: int
    PP_STATIC_PHASES: int
    PP_DOT: int
    PP_GOAL: int
    PP_LANES_MAX: int
    PP_GENERATOR_RANDOM: int
    PP_GENERATOR_SMART: int
    PP_GENERATOR_CONTROLLER: int
    PP_GENERATOR_TABLE: int
    PP_GENERATOR_GIVEN: int
    PP_GENERATOR_COUNT: int
    PP_WEIGHTS_CONSTANT: int
    PP_WEIGHTS_CLOSEST: int
    PP_WEIGHTS_INITIAL: int
    PP_WEIGHTS_COUNT: int
    PP_BACKEND_AUTO: int
    PP_BACKEND_NODE: int
    PP_BACKEND_SCHEDULE: int
    PP_BACKEND_COMM: int
    PP_BACKEND_COUNT: int
    PP_GROUPS_IN_CALL: int
    PP_GROUPS_FLUSHES: int
    PP_GROUPS_FREES: int
    PP_GROUPS_OUT: int
    PP_GROUPS_START: int
    PP_GROUPS_FINISH: int
    PP_GROUPS_LEAVE: int
    PP_GROUPS_BACK: int
    PP_GROUPS_BEGIN: int
    PP_GROUPS_COMPLETE: int
    PP_GROUPS_ALONE: int
    PP_GROUPS_FLUSH: int
    PP_GROUPS_END: int
    PP_GROUPS_DIFFER: int
    PP_STATIC_PHASES: int
    def pp_error_text(self) -> CData: ...
    def pp_version(self) -> CData: ...
    def pp_type_bytes(self, type: int, /) -> int: ...
    def pp_accumulator_bytes(self, type: int, /) -> int: ...
    def pp_type_name(self, type: int, /) -> CData: ...
    def pp_op_name(self, op: int, /) -> CData: ...
    def pp_op_supports(self, op: int, type: int, /) -> int: ...
    def pp_reduce_local(
        self, op: int, type: int, in_: CData, inout: CData, count: int, inout_is_left: int, /
    ) -> int: ...
    def pp_ctx_open(
        self, comm: CData, config: CData, complaint: bytes | CData, ctx: CData, /
    ) -> int: ...
    def pp_choose(
        self,
        tuned: CData,
        tuned_count: int,
        count: int,
        element_bytes: int,
        ranks: int,
        link: int,
        choice: CData,
        /,
    ) -> int: ...
    def pp_model_cost(
        self,
        cost: CData,
        algorithm: int,
        count: int,
        element_bytes: int,
        ranks: int,
        us: CData,
        /,
    ) -> int: ...
    def pp_algorithm_count(self) -> int: ...
    def pp_algorithm_name(self, algorithm: int, /) -> CData: ...
    def pp_algorithm_chunk_a_rank(self, algorithm: int, /) -> int: ...
    def pp_model_defaults(self, link: int, cost: CData, /) -> int: ...
    def pp_ctx_tune(self, ctx: CData, tuned: CData, tuned_count: int, /) -> int: ...
    def pp_ctx_link(self, ctx: CData, /) -> int: ...
    def pp_ctx_free_begin(self, ctx: CData, /) -> int: ...
    def pp_ctx_abandon(self, ctx: CData, /) -> None: ...
    def pp_ctx_release(self, ctx: CData, /) -> None: ...
    def pp_call_wait(self, ctx: CData, timeout_us: int, /) -> int: ...
    def pp_ctx_rank(self, ctx: CData, /) -> int: ...
    def pp_ctx_size(self, ctx: CData, /) -> int: ...
    def pp_ctx_stats(self, ctx: CData, stats: CData, /) -> None: ...
    def pp_ctx_alloc(self, ctx: CData, size_bytes: int, memory: CData, keeper: CData, /) -> int: ...
    def pp_ctx_note(self, ctx: CData, /) -> CData: ...
    def pp_unalloc(self, keeper: CData, /) -> None: ...
    def pp_allreduce_init_begin(
        self, ctx: CData, config: CData, complaint: bytes | CData, coll: CData, /
    ) -> int: ...
    def pp_preduce_init_begin(
        self, ctx: CData, config: CData, complaint: bytes | CData, handle: CData, /
    ) -> int: ...
    def pp_preduce_start(
        self, handle: CData, iteration: int, members: list[int] | CData, count: int, /
    ) -> int: ...
    def pp_preduce_result(self, handle: CData, result: CData, /) -> int: ...
    def pp_preduce_ran(self, handle: CData, /) -> int: ...
    def pp_preduce_backend(self, handle: CData, /) -> int: ...
    def pp_ctx_nodes(self, ctx: CData, node_of: CData, /) -> None: ...
    def pp_groups_static_table(self, nodes: int, per_node: int, table: CData, /) -> int: ...
    def pp_start(self, coll: CData, /) -> int: ...
    def pp_wait(self, coll: CData, timeout_us: int, result: CData, /) -> int: ...
    def pp_test(self, coll: CData, result: CData, /) -> int: ...
    def pp_wait_slice(self, coll: CData, /) -> int: ...
    def pp_more(self, handle: CData, result: CData, /) -> int: ...
    def pp_timed_out(self, handle: CData, /) -> int: ...
    def pp_away_begin(self, ctx: CData, /) -> int: ...
    def pp_away_end(self, ctx: CData, /) -> int: ...
    def pp_ctx_patience_note(self, ctx: CData, /) -> CData: ...
    def pp_wait_view(
        self, coll: CData, timeout_us: int, result: CData, elements: CData, keeper: CData, /
    ) -> int: ...
    def pp_flush_begin(self, coll: CData, /) -> int: ...
    def pp_drain_begin(self, coll: CData, /) -> int: ...
    def pp_collect(self, coll: CData, result: CData, /) -> int: ...
    def pp_handle_free_begin(self, coll: CData, discarded: CData, /) -> int: ...
    def pp_preduce_init_begin(
        self, ctx: CData, config: CData, complaint: CData, handle: CData, /
    ) -> int: ...
    def pp_preduce_start(
        self, handle: CData, iteration: int, members: CData, count: int, /
    ) -> int: ...
    def pp_preduce_result(self, handle: CData, result: CData, /) -> int: ...
    def pp_preduce_ran(self, handle: CData, /) -> int: ...
    def pp_preduce_backend(self, handle: CData, /) -> int: ...
    def pp_ctx_nodes(self, ctx: CData, node_of: CData, /) -> None: ...
    def pp_groups_static_table(self, nodes: int, per_node: int, table: CData, /) -> int: ...
    def pp_question_open(
        self, ctx: CData, handle: int, states: CData, question: CData, /
    ) -> int: ...
    def pp_question_close(self, ctx: CData, question: CData, /) -> None: ...
    def pp_ask(self, ctx: CData, handle: int, timeout_us: int, states: CData, /) -> int: ...
    def pp_handle_id(self, coll: CData, /) -> int: ...
    def pp_handle_algorithm(self, coll: CData, /) -> int: ...
    def pp_handle_reason(self, coll: CData, /) -> int: ...
    def pp_schedule_dump(
        self, algorithm: int, size: int, count: int, type: int, format: int, text: CData, /
    ) -> int: ...
    def pp_handle_dump(self, coll: CData, format: int, text: CData, /) -> int: ...
    def pp_text_free(self, text: bytes | CData, /) -> None: ...
    def pp_handle_fired(
        self, coll: CData, round: CData, fired: CData, capacity: int, count: CData, /
    ) -> int: ...
    def pp_handle_obstacles(self, coll: CData, text: CData, /) -> int: ...
    def pp_ctx_obstacles(self, ctx: CData, text: CData, /) -> int: ...
    def pp_built_for(self) -> CData: ...
    def pp_mpi_file(self) -> CData: ...

ffi: FFI
lib: Lib
