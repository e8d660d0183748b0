package orphans

// requestedBy is the requester of the retirement of orphaned Nodes. The value is an old name: stored NodeRetirements have it.
const requestedBy = "slipway manager, strays"
