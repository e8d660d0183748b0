package nodegroup

// UnderutilizedRequester is the requester of the retirements of underutilized nodes. The value is an old name: stored
// NodeRetirements have it.
const UnderutilizedRequester = "slipway manager, underused"
