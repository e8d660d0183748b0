package surge

// The reasons of a [Decision] with the verdict Needed, NotYet or NotNeeded.
const (
	// ReasonPDBNeverAllows: a PodDisruptionBudget denies the eviction even if every pod is healthy.
	ReasonPDBNeverAllows = "pdb-never-allows"
	// ReasonLastReady: no other ready pod of the owner is on a node that stays.
	ReasonLastReady = "last-ready"
	// ReasonPDBDenies: a PodDisruptionBudget has denied the eviction for a while, and would allow it with one more healthy pod.
	ReasonPDBDenies = "pdb-denies"
	// ReasonOff: surging is off, or no annotation asks for it.
	ReasonOff = "off"
	// ReasonNotReady: the pod is not Ready, so that nothing is lost when it leaves.
	ReasonNotReady = "not-ready"
	// ReasonOthersReady: other pods of the owner are ready on nodes that stay, and no PodDisruptionBudget always denies the eviction.
	ReasonOthersReady = "others-ready"
	// ReasonLeaving: the pod is already terminating or finished.
	ReasonLeaving = "leaving"
)

// The reasons of a refusal, in a [Decision] or a [Result].
const (
	ReasonOptedOut       = "opted-out"        // an annotation says "false"
	ReasonOwnerKind      = "owner-kind"       // the owner is of a kind for which the effect of a raise is not known
	ReasonOwnRemoval     = "own-removal"      // a field of the owner changes which pods it deletes, and when
	ReasonReadWriteOnce  = "read-write-once"  // the pod has a volume that only one node or pod can use
	ReasonRollout        = "rollout"          // the owner is in the middle of a rollout
	ReasonRecreate       = "recreate"         // the strategy Recreate says that two pods must not run at once
	ReasonPaused         = "paused"           // the owner is paused
	ReasonDeleting       = "deleting"         // the owner is being deleted, or was replaced
	ReasonAtMaximum      = "at-maximum"       // the autoscaler's maximum allows no further pod
	ReasonScalerConflict = "scaler-ambiguous" // several autoscalers size the owner
	ReasonNoTime         = "no-time"          // the successor would not be ready in time
	ReasonNoRights       = "no-rights"        // a request was forbidden
	ReasonNoRoom         = "no-room"          // no other node has room
	ReasonScalerStuck    = "scaler-stuck"     // the autoscaler could not lower the size again
	ReasonReverted       = "reverted"         // another client took an earlier raise back
	ReasonSizeUnknown    = "size-unknown"     // the owner has no size
	ReasonPDBStillDenies = "pdb-still-denies" // one more healthy pod would not make the PodDisruptionBudget allow the eviction
)

// The reasons of a surge that has started and failed, in a [Result].
const (
	ReasonBusy            = "busy"              // another surge of the owner runs
	ReasonUnschedulable   = "unschedulable"     // the scheduler found no node for the successor
	ReasonNoSuccessor     = "no-successor"      // no new pod was created
	ReasonNotReadyInTime  = "not-ready-in-time" // the successor did not become Ready
	ReasonNoEndpoint      = "no-endpoint"       // a Service did not send traffic to the successor
	ReasonSizeChanged     = "size-changed"      // another client changed the size
	ReasonUntil           = "until"             // the time of Request.Until has come
	ReasonCancelled       = "cancelled"         // the context has ended
	ReasonRecordLost      = "record-lost"       // the record could not be renewed, or another process took it over
	ReasonOtherPodRemoved = "other-pod-removed" // the pod was not removed after the size was lowered
	ReasonNotEvicted      = "not-evicted"       // the caller did not evict the pod in time
	ReasonRequestFailed   = "request-failed"    // the API server refused a request
	ReasonNotNeeded       = "not-needed"        // another pod became ready before the surge started, or the PodDisruptionBudget allowed the eviction before the successor was Ready
)

// RefusalReasons are the reasons of a refusal. FailureReasons are the reasons of a surge that has started and failed. Metrics have
// a label for each.
var (
	RefusalReasons = []string{
		ReasonOptedOut, ReasonOwnerKind, ReasonOwnRemoval, ReasonReadWriteOnce, ReasonRollout, ReasonRecreate, ReasonPaused,
		ReasonDeleting, ReasonAtMaximum, ReasonScalerConflict, ReasonNoTime, ReasonNoRights, ReasonNoRoom,
		ReasonScalerStuck, ReasonReverted, ReasonSizeUnknown, ReasonPDBStillDenies,
	}
	FailureReasons = []string{
		ReasonBusy, ReasonUnschedulable, ReasonNoSuccessor, ReasonNotReadyInTime, ReasonNoEndpoint,
		ReasonSizeChanged, ReasonUntil, ReasonCancelled, ReasonRecordLost, ReasonOtherPodRemoved,
		ReasonNotEvicted, ReasonRequestFailed, ReasonNotNeeded, ReasonLeaving,
		ReasonRollout, ReasonOwnRemoval, ReasonDeleting, ReasonNoRights,
	}
)
