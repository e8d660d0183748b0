package orphans

// requestedBy is the value of spec.requestedBy in the NodeRetirements of orphaned Nodes. It must not change, although
// it contains an old name: stored NodeRetirements have this value.
const requestedBy = "slipway manager, strays"
