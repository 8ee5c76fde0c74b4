"""What the tiled-carrier specification asks: requirements and scenarios by their titles, all other rules in our words.

The page and its check are made of this. A scenario is proven by the tests that are named after it; a rule by the tests
that stand beside it: `test_x` of the requirement's own class, `TestOther.test_x` of another one in this folder, or
`folder/test_file.py::test_x` or
`folder/test_file.py::TestOther.test_x`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Requirement:
    """One requirement: the titles of its scenarios, and its other rules with the tests that prove them."""

    title: str
    scenarios: tuple[str, ...]
    rules: dict[str, tuple[str, ...]]


_CLASS = {
    "extent": "TestTiledEvictableOwnsOneFlatLogicalStorageExtent",
    "footprints": "TestTensorLayoutCompatibilityPreservesExactCarrierTileFootprints",
    "project": "TestProjectEagerlyReturnsACompletionHandleForACompactTensor",
    "gather": "TestGatherPreservesPublicTileSelectionOrdering",
    "node": "TestProjectionIsAnAutogradVisibleGather",
    "work": "TestResidencyRemainsValidWhileTiledWorkNeedsIt",
    "direct": "TestADirectTiledOperandMeansTheFullLogicalTensor",
    "scatter": "TestScatterIsTheAsynchronousProjectionCounterpart",
    "transitions": "TestResidencyTransitionsHaveAsynchronousAndBlockingForms",
    "policy": "TestResidencyPolicyCanOptimizeButCannotDefineCorrectness",
    "release": "TestTiledReleaseEndsAllOwnedResidency",
    "state": "TestResidencyStateIsIndependentOfExecutableSelectionShape",
    "sets": "TestResidencyRequestsUseArbitraryImmutableTileSets",
}


def _of(short: str, test: str) -> str:
    return f"{_CLASS[short]}.{test}"


REQUIREMENTS = (
    Requirement(
        "TiledEvictable owns one flat logical storage extent",
        ("Promote one expert tile",),
        {
            "one dtype, one extent, one grid, one tile shape, two tiers that hold every tile": (
                "test_facts_are_exposed",
                "TestConstruction.test_unfit_tiers_are_refused",
                "TestConstruction.test_every_dtype_survives_a_round_trip",
            ),
            "a coordinate has exactly one tile and one place in it": (
                "test_each_coordinate_has_one_tile_and_one_place",
                "property/test_geometry.py::test_geometry_tiles_partition_the_extent_at_their_base",
            ),
            "shape and Layout are those of the whole, and the Tensor must be compatible": (
                _of("footprints", "test_reject_one_logical_tile_spanning_physical_tiles"),
                _of("footprints", "test_reject_a_tensor_of_another_rank"),
            ),
            "residency changes no shape, Layout, dtype, extent, identity or version": (
                "test_promote_one_expert_tile_changes_only_its_residency",
                "test_residency_transitions_keep_extent_dtype_and_version",
            ),
            "a selection never changes the placement Layout": ("test_selection_leaves_the_placement_layout_alone",),
            "names are importable from both packages": ("test_name_is_importable_from_both_places",),
            "the only shipped carrier that is installed by a definition": (
                "test_definition_is_the_only_one_that_is_shipped",
            ),
            "the definition composes carriers that have none, by what they offer to everybody": (
                "test_tier_of_a_defined_class_computes_and_stores",
                _of("direct", "test_capabilities_are_those_of_the_six_and_stay_after_release"),
            ),
            "composing changes nothing on the other carrier classes": (
                "test_composition_leaves_the_tier_classes_unchanged",
            ),
        },
    ),
    Requirement(
        "Tensor Layout compatibility preserves exact carrier tile footprints",
        (
            "Accept a within-tile permutation",
            "Reject one logical tile spanning physical tiles",
            "Reject aliasing or incomplete tile coverage",
            "Reject tile-coordinate remapping",
        ),
        {
            "compatible means: every tile injective, onto exactly its own footprint": (
                "property/test_geometry.py::test_geometry_accepts_exactly_the_footprint_compatible_layouts",
                "property/test_geometry.py::test_geometry_any_strides_are_judged_as_the_rule_says",
                "test_both_orders_of_the_same_slots_are_compatible",
            ),
            "offset and Layout alone say which coordinate has which slot": (
                "test_element_access_follows_the_tensors_own_layout",
                "test_reject_an_offset_that_leaves_the_footprint",
            ),
            "every order within a tile is accepted, by every entry point": (
                "test_accept_a_within_tile_permutation_in_direct_operations_and_backward",
                _of("scatter", "test_template_layout_places_values_within_tiles"),
                _of("node", "test_gradient_follows_the_layout_of_the_source"),
            ),
        },
    ),
    Requirement(
        "TileSelection is an ordered Cartesian product",
        (
            "Select three experts in router order",
            "Include every recombined corner",
            "Enumerate a multi-axis selection first-mode-fastest",
        ),
        {
            "an immutable value that keeps nothing of its input": (
                "test_selection_is_immutable_and_keeps_nothing_of_its_input",
                "test_selection_is_a_value",
            ),
            "per_axis, rank and compact_grid_shape are exposed, in the caller's order": (
                "test_iterables_are_consumed_once_and_kept_in_order",
                "test_select_three_experts_in_router_order",
            ),
            "coordinates are the whole product, counted as Shape does": (
                "test_coordinates_are_what_shape_decode_says",
            ),
            "the compact coordinate picks from each axis": ("test_selection_takes_tiles_from_the_named_axis",),
            "TypeError for what is no finite iterable of integers": (
                "test_wrong_type_is_refused",
                "test_numpy_integers_are_integers",
                "test_type_comes_before_value",
            ),
            "ValueError for no axis, an empty one, a duplicate, a negative": ("test_wrong_value_is_refused",),
            "binding: ValueError for another rank or range": ("test_binding_to_a_grid_it_does_not_fit_is_refused",),
            "no sparse constructor, no IndexMap": ("test_no_index_map_and_no_sparse_constructor_is_public",),
            "importable from both packages": (_of("extent", "test_name_is_importable_from_both_places"),),
        },
    ),
    Requirement(
        "Project eagerly returns a completion handle for a compact Tensor",
        (
            "Overlap projection with computation",
            "Observe a completed projection repeatedly",
            "Keep the full Tensor unchanged",
        ),
        {
            "TypeError for no Tensor, another carrier's, or no selection": (
                "test_tensor_comes_before_selection",
                "test_selection_of_another_type_comes_before_destination",
            ),
            "ValueError for a selection of another rank or range": (
                "test_selection_outside_the_grid_comes_before_destination",
            ),
            "RuntimeError for a released carrier": ("test_released_carrier_comes_before_everything",),
            "these come before any work": (
                "test_tensor_comes_before_selection",
                "test_selection_outside_the_grid_comes_before_destination",
            ),
            "the destination is a fresh carrier of the compute class, unless given": (
                "test_default_destination_is_fresh_each_time",
                "test_result_is_an_ordinary_dense_tensor_of_the_compute_carrier",
            ),
            "a given destination: class, life, mutability, dtype and extent are checked, before any work": (
                "test_unfit_destination_is_refused",
                "test_destination_class_comes_before_its_life_before_dtype_before_extent",
                "test_owned_destination_is_refused",
            ),
            "a given destination is filled, or allocated": (
                "test_destination_receives_the_values_and_is_owned_meanwhile",
                "test_empty_destination_is_allocated",
            ),
            "transfers start before the return, and the return waits for no byte": (
                "test_overlap_projection_with_computation",
                "test_project_returns_before_bytes_move_from_primary",
                "test_wait_can_give_up_and_come_back",
            ),
            "source and destination stay valid until the end": (
                _of("work", "test_eviction_races_with_execution"),
                _of("work", "test_writes_to_needed_tiles_are_refused"),
                "test_destination_receives_the_values_and_is_owned_meanwhile",
            ),
            "the result is dense, in order, of the source's dtype, with exactly the selected values": (
                "test_result_is_an_ordinary_dense_tensor_of_the_compute_carrier",
                _of("gather", "test_gather_keeps_every_bit"),
                "property/test_tiled_autograd.py::test_gradients_of_any_program_equal_those_of_dense_torch",
            ),
            "no selection is kept on the carrier": (_of("gather", "test_gather_is_the_same_wherever_the_tiles_are"),),
            "what the caller changes after the return changes nothing": ("test_inputs_may_change_after_return",),
            "the handle is importable from both packages": ("test_handle_is_importable_from_both_places",),
        },
    ),
    Requirement(
        "Projection is an autograd-visible gather",
        ("Backpropagate through project then operation", "Accumulate overlapping projections"),
        {
            "exactly one node, when somebody wants a gradient and grad mode is on": (
                "test_exactly_one_node_with_the_source_as_its_only_input",
                "test_no_node_without_grad_or_under_no_grad",
                "test_failed_projection_leaves_no_node",
            ),
            "the handle is no node and no operand": (
                "test_handle_is_no_operand",
                _of("direct", "test_reject_a_pending_projection_operand"),
            ),
            "backward uses what the projection saw when it began": (
                "test_version_is_that_of_initiation",
                "test_grad_mode_of_initiation_decides",
                _of("project", "test_inputs_may_change_after_return"),
            ),
            "the saved version is checked before a gradient is made": (
                "test_write_after_projection_is_modified_in_place",
                "test_residency_is_no_modification",
                "test_released_source_is_refused",
            ),
            "the gradient is a fresh carrier of the source's dtype, Layout, geometry and tiers": (
                "test_gradient_is_a_fresh_carrier_like_that_of_the_source",
                "test_gradient_has_the_dtype_of_the_source",
            ),
            "contributions add up, and untouched tiles are valid implicit zero": (
                "test_untouched_tiles_are_valid_implicit_zero",
                "test_grad_accumulates_over_backwards",
                "test_one_projection_used_twice_sums_before_it_is_scattered",
            ),
        },
    ),
    Requirement(
        "Residency state is independent of executable selection shape",
        ("Cache unrelated tiles",),
        {
            "every tile tells its location, validity and dirt": ("test_state_names_location_validity_and_dirt",),
            "an invalid tile is not read before it is initialized": (
                "TestInvalidTilesAreNotReadable.test_every_way_to_read_is_refused_and_nothing_changes",
                _of("direct", "test_invalid_tile_is_refused_before_anything_moves"),
            ),
            "a declared implicit value is read": (
                "TestImplicitTilesAreZero.test_implicit_tiles_are_valid_zeros_in_no_tier",
                "TestImplicitTilesAreZero.test_projection_of_implicit_tiles_is_zero",
                _of("direct", "test_implicit_tiles_are_zero"),
            ),
            "a dirty tile is preserved before primary lets go of it": (
                _of("transitions", "test_evict_a_selected_dirty_tile_set"),
                _of("transitions", "test_promotion_writes_dirty_tiles_back_to_make_room"),
            ),
        },
    ),
    Requirement(
        "Residency remains valid while tiled work needs it",
        ("Eviction races with execution",),
        {
            "from initiation to the end a needed tile is neither evicted nor replaced nor written": (
                "test_pinned_tiles_are_not_replaced_for_room",
                "test_writes_to_needed_tiles_are_refused",
                "test_eviction_races_with_a_direct_operation",
                "test_eviction_races_with_a_backward",
                _of("scatter", "test_compact_is_owned_and_template_tiles_are_pinned_meanwhile"),
            ),
            "missing values arrive before they are consumed": (
                "test_two_projections_share_their_tiles",
                _of("direct", "test_operation_waits_for_its_own_reads"),
            ),
            "no overlapping transition commits meanwhile": (
                "test_eviction_races_with_execution",
                _of("policy", "test_eviction_is_deferred_until_it_cannot_invalidate_live_work"),
                _of("policy", "test_eviction_after_one_operation_is_deferred_while_another_runs"),
            ),
            "a failure before submission changes nothing": (
                _of("project", "test_tensor_comes_before_selection"),
                _of("policy", "test_exception_of_the_policy_propagates_before_any_work"),
            ),
            "a failure after submission publishes nothing, and leaves all usable": (
                "fault/test_tiled_evictable_faults.py::TestFailedProjection.test_project_read_fails_publishes_nothing",
                "test_failed_read_publishes_no_result_and_leaves_all_usable",
                "test_failed_read_of_a_backward_publishes_no_gradient",
                "test_short_read_is_an_error_and_no_result",
                "test_gradient_that_cannot_spill_is_not_published",
                _of("scatter", "test_failing_read_publishes_nothing_and_leaves_both_usable"),
            ),
        },
    ),
    Requirement(
        "A direct tiled operand means the full logical Tensor",
        (
            "Execute on a partially resident full Tensor",
            "Reject a pending projection operand",
            "Execute on an explicitly projected Tensor",
        ),
        {
            "exactly six operations, mul in its three forms": (
                "test_result_is_the_dense_one_of_central_semantics",
                "test_every_spelling_reaches_the_operation",
                "test_dispatched_operation_of_the_carrier_runs",
            ),
            "any other operation is unsupported": (
                "test_other_operation_names_stay_unsupported",
                "test_views_of_a_tiled_tensor_are_unsupported",
            ),
            "every tile counts, wherever it is": (
                "test_execute_on_a_partially_resident_full_tensor",
                "test_written_values_and_dirty_tiles_are_what_the_operation_sees",
                "test_every_tile_goes_through_a_budget_of_fewer",
                "property/test_tiled_direct.py::test_pointwise_results_and_gradients_equal_those_of_torch",
                "property/test_tiled_direct.py::test_sums_and_their_gradients_equal_those_of_torch",
                "property/test_tiled_direct.py::test_products_of_matrices_and_their_gradients_equal_those_of_torch",
            ),
            "values are made available first; the call blocks for them": (
                "test_operation_waits_for_its_own_reads",
                "test_budget_that_somebody_else_holds_is_no_hindrance",
            ),
            "the result is the dense one of the compute carrier": (
                "test_result_is_the_dense_one_of_central_semantics",
                "test_every_dtype_has_the_result_of_the_compute_carrier",
            ),
            "the result has the same bits whatever is resident": (
                "test_result_has_the_same_bits_whatever_is_resident",
                "property/test_tiled_direct.py::test_bits_of_results_and_gradients_do_not_depend_on_what_is_resident",
                "property/test_tiled_direct.py::test_bits_of_a_product_do_not_depend_on_what_is_resident",
            ),
            "one visible operation and one node": (
                "test_exactly_one_operation_and_autograd_boundary",
                "test_profiler_sees_the_operation_once",
                "test_direct_node_below_dense_ones",
            ),
            "handles are no Tensors": (
                "test_reject_a_pending_projection_operand",
                "test_handles_of_residency_and_scatter_are_no_operands",
            ),
            "a projected Tensor keeps every operation of the compute carrier, in a node of its own": (
                "test_execute_on_an_explicitly_projected_tensor",
            ),
            "saved values are checked by version, and are never pinned": (
                "test_changed_operand_is_noticed_as_on_the_compute_carrier",
                "test_released_saved_operand_is_refused",
                "test_nothing_is_pinned_between_forward_and_backward",
            ),
            "an operand larger than the budget streams": (
                "integration/test_tiled_direct_memory.py::"
                "test_direct_operation_stays_within_budget_result_three_tiles_and_100_mib",
                "integration/test_tiled_direct_memory.py::"
                "test_backward_stays_within_the_budgets_of_operand_and_gradient",
            ),
        },
    ),
    Requirement(
        "Gather preserves public TileSelection ordering",
        ("Gather a permuted selection", "Gather a multi-axis selection"),
        {
            "Layout governs placement within a tile": (
                "property/test_geometry.py::test_project_of_any_compatible_layout_equals_numpy_indexing",
                _of("footprints", "test_accept_a_within_tile_permutation"),
                "property/test_tiled_autograd.py::test_tiles_as_modes_are_the_regions_of_the_dense_values",
            ),
            "dtype and values are kept": ("test_gather_keeps_every_bit",),
            "the selection is validated against the whole grid before work": (
                _of("project", "test_selection_outside_the_grid_comes_before_destination"),
            ),
            "no IndexMap in the contract": (
                "TestTileSelectionIsAnOrderedCartesianProduct.test_no_index_map_and_no_sparse_constructor_is_public",
            ),
        },
    ),
    Requirement(
        "Scatter is the asynchronous projection counterpart",
        ("Scatter a compact result", "Project after replace scatter", "Reject a compact shape mismatch"),
        {
            "replace and add, by position or keyword, replace unless given; ValueError for others": (
                "test_reduction_is_positional_or_keyword_and_defaults_to_replace",
                "test_other_reductions_come_before_everything",
            ),
            "TypeError for no Tensors, other carriers, no selection, another dtype": (
                "test_template_comes_before_selection_before_compact",
                "test_compact_kind_comes_before_its_life_before_dtype_before_shape",
            ),
            "RuntimeError for a released or owned input or carrier": (
                "test_released_carrier_comes_before_the_operands",
                "test_owned_compact_comes_before_its_dtype",
            ),
            "validation ends before anything moves": (
                "test_overlap_with_a_pending_request_is_refused",
                "test_more_tiles_than_the_budget_holds_are_refused_before_anything",
            ),
            "work starts eagerly, and the return waits for no byte": (
                "test_scatter_starts_eagerly",
                "test_scatter_returns_before_bytes_move",
            ),
            "the result is fresh: the template's shape, Layout, dtype, geometry and tiers": (
                "test_result_is_fresh_and_like_the_template",
                "test_result_does_not_share_memory_with_either_input",
            ),
            "inputs are neither released nor changed": ("test_inputs_are_neither_released_nor_changed",),
            "replace publishes the compact values": ("test_replace_keeps_every_bit",),
            "add is the central addition, to what is there or to implicit zero": (
                "test_add_sums_with_what_the_template_has_wherever_it_is",
                "test_add_to_implicit_zero_is_the_compact_values",
                "test_add_is_the_central_addition_in_every_dtype",
            ),
            "selected tiles commit together, valid and dirty; the version is one": (
                "test_scatter_a_compact_result",
                "test_version_of_the_result_is_exactly_one",
                "test_replace_of_zeros_is_valid_and_dirty",
            ),
            "unselected tiles are invalid": ("test_unselected_tile_is_invalid_though_the_template_has_it",),
            "unselected tiles of a gradient are valid implicit zero": (
                _of("node", "test_untouched_tiles_are_valid_implicit_zero"),
            ),
            "failure publishes nothing, and leaves both inputs usable": (
                "test_failing_read_publishes_nothing_and_leaves_both_usable",
                "test_failing_replace_publishes_nothing_and_leaves_both_usable",
                "test_failing_allocation_of_the_result_changes_nothing",
            ),
            "scatter-add is the adjoint of projection": (
                "property/test_tiled_autograd.py::test_gradients_of_any_program_equal_those_of_dense_torch",
            ),
        },
    ),
    Requirement(
        "Scatter participates in autograd",
        ("Differentiate replace scatter",),
        {
            "one node on the result; the handle is none": (
                "test_exactly_one_node_with_compact_and_template",
                "test_handle_is_no_node",
                "test_failed_scatter_leaves_no_node",
            ),
            "compact gets the cotangent of the saved selection": (
                "test_compact_gets_the_cotangent_in_the_order_of_the_selection",
            ),
            "replace passes none to the template": ("test_replace_passes_no_gradient_to_template",),
            "add passes the selected cotangent to both": ("test_add_passes_the_selected_cotangent_to_both",),
        },
    ),
    Requirement(
        "Residency requests use arbitrary immutable tile sets",
        ("Represent a non-product cache set",),
        {
            "coordinates are sorted, first axis fastest": ("test_coordinates_are_sorted_by_their_reverse",),
            "TypeError for what is no finite iterable of integer coordinates": (
                "test_wrong_type_is_refused",
                "test_type_comes_before_value",
            ),
            "ValueError for mixed ranks, a negative, a duplicate": ("test_wrong_value_is_refused",),
            "the empty set binds to any grid": ("test_empty_set_is_valid_on_any_grid",),
            "binding: ValueError for another rank or range": ("test_binding_to_a_grid_it_does_not_fit_is_refused",),
            "a selection gives its tiles as a set": (
                "test_selection_is_accepted_as_its_tile_set",
                "TestTileSelectionIsAnOrderedCartesianProduct.test_tile_set_holds_its_coordinates",
            ),
            "values are immutable": ("test_set_is_an_immutable_value", "test_plan_is_an_immutable_value"),
            "a plan has three disjoint sets, empty unless given": (
                "test_plan_exposes_three_tile_sets",
                "test_plan_of_another_type_is_refused",
                "test_plan_with_a_tile_in_two_fields_is_refused",
            ),
            "importable from both packages": (_of("extent", "test_name_is_importable_from_both_places"),),
        },
    ),
    Requirement(
        "Residency transitions have asynchronous and blocking forms",
        (
            "Prefetch without changing autograd",
            "Evict a selected dirty tile set",
            "Refuse hidden waiting on external transition",
        ),
        {
            "four methods, of the carrier and of the facet": (
                "test_facet_has_the_four_methods_and_takes_the_carrier_first",
                _of("sets", "test_selection_is_accepted_as_its_tile_set"),
            ),
            "released, then type, then range, then conflict": (
                "test_released_comes_before_type",
                "test_wrong_type_is_refused",
                "test_range_comes_before_conflict",
            ),
            "the whole set is validated before any of it moves": (
                "test_complete_set_is_validated_before_any_of_it_moves",
                "test_promotion_beyond_the_budget_is_refused_whole",
            ),
            "the asynchronous forms return before the end": (
                "test_promoted_set_commits_together",
                "test_dirty_set_commits_together",
            ),
            "the blocking forms return None": (
                "test_evict_a_selected_dirty_tile_set",
                "test_facet_has_the_four_methods_and_takes_the_carrier_first",
            ),
            "promotion makes every tile valid in primary": (
                "test_promoted_set_commits_together",
                "test_promotion_never_makes_room_with_its_own_tiles",
            ),
            "eviction preserves every dirty value first": (
                "test_dirty_set_commits_together",
                "test_immutable_secondary_is_never_written",
            ),
            "satisfied requests are idempotent": (
                "test_satisfied_requests_are_idempotent",
                "test_partly_satisfied_request_moves_only_the_rest",
            ),
            "a failed request leaves the whole set as it was": (
                "fault/test_tiled_evictable_faults.py::TestFailedPromotion.test_promote_read_fails_promotes_none_of_the_set",
                "fault/test_tiled_evictable_faults.py::TestFailedEviction.test_evict_write_fails_evicts_none_of_the_set",
            ),
            "transitions make no node, and keep the identity": (
                "test_prefetch_without_changing_autograd",
                "test_transition_creates_no_tensor",
            ),
            "an operation, a backward, a projection or a scatter refuses to wait for another's request": (
                "test_refuse_hidden_waiting_on_external_transition",
                _of("scatter", "test_overlap_with_a_pending_request_is_refused"),
            ),
            "movement of the same request is no conflict": (
                "test_movement_of_the_same_operation_is_no_conflict",
                "test_projection_on_its_way_is_no_conflict_for_an_operation",
                "test_transition_of_a_disjoint_carrier_is_no_conflict",
            ),
            "the handle is importable from both packages": (_of("extent", "test_name_is_importable_from_both_places"),),
        },
    ),
    Requirement(
        "Residency policy can optimize but cannot define correctness",
        (
            "Run backward without a policy",
            "Skip an unreachable branch",
            "Reject an invalid policy result before execution",
        ),
        {
            "a structural protocol, checked at runtime": ("test_protocol_is_structural_and_checked_at_runtime",),
            "it is given what is required and one of four purposes": (
                "test_policy_sees_the_required_tiles_and_the_purpose_once_per_request",
                "test_policy_is_asked_once_for_an_operation_before_anything_moves",
                "test_policy_is_asked_once_for_a_backward_that_reads_saved_tiles",
                _of("scatter", "test_policy_is_asked_once_with_the_selected_tiles"),
            ),
            "a keyword of the constructor, None unless given, fixed for good; TypeError for no policy": (
                "test_default_is_none_and_the_choice_is_fixed",
                "test_no_policy_is_refused_at_construction_and_tiers_stay_free",
            ),
            "another return type, another grid, an exception: before any work": (
                "test_plan_outside_the_grid_is_refused_before_execution",
                "test_exception_of_the_policy_propagates_before_any_work",
                "test_reject_an_invalid_policy_result_before_execution_of_an_operation_and_a_backward",
            ),
            "promoted tiles are primary before they are consumed": (
                "test_promoted_tiles_are_primary_when_the_request_is_over",
                "test_promoted_tiles_are_primary_before_the_operation_consumes_them",
                "test_promoted_tiles_are_primary_before_a_backward_consumes_them",
            ),
            "retained tiles stay until the request is over": (
                "test_retained_tile_survives_a_full_budget",
                "test_retained_tiles_stay_until_the_operation_is_over",
            ),
            "evicted tiles leave after the request, never before live work or a saved value allows": (
                "test_evicted_required_tile_leaves_only_after_the_request",
                "test_eviction_is_deferred_until_it_cannot_invalidate_live_work",
                "test_evict_tiles_leave_after_the_operation_and_never_take_saved_values_away",
            ),
            "required values come whatever the policy says": (
                "test_required_values_come_whatever_the_policy_says",
                "test_required_values_come_to_an_operation_whatever_the_policy_says",
                "test_policy_that_moves_the_tiles_of_an_operation_away_changes_no_result",
            ),
            "a policy changes no result and no gradient": (
                "test_every_shipped_policy_gives_the_results_and_gradients_that_none_gives",
                "property/test_tiled_direct.py::test_gradients_add_up_over_programs_of_projections_and_direct_operations",
            ),
            "it is asked only for what executes": (
                "test_policy_is_not_asked_for_transitions_elements_or_refused_requests",
                "test_policy_is_not_asked_for_an_operation_that_is_refused",
                "test_branch_that_the_loss_does_not_use_asks_nothing",
                "test_backward_that_reads_no_saved_tile_asks_nothing",
            ),
            "importable from both packages": ("test_name_is_importable_from_both_places",),
        },
    ),
    Requirement(
        "Tiled release ends all owned residency",
        ("Release after completed tiled work",),
        {
            "it returns None, and again": ("test_release_is_idempotent",),
            "work that is not over refuses it, and is neither cancelled nor robbed": (
                "test_release_during_work_is_refused_and_cancels_nothing",
                "test_release_inside_a_borrow_or_a_stream_is_refused",
                _of("scatter", "test_replace_pending_keeps_the_carrier_from_release"),
                _of("work", "test_eviction_races_with_a_direct_operation"),
                _of("work", "test_eviction_races_with_a_backward"),
            ),
            "afterwards every use is a RuntimeError": (
                "test_release_after_completed_tiled_work",
                _of("direct", "test_released_carrier_is_refused"),
            ),
        },
    ),
)
"""All fifteen, in the order of the specification."""
