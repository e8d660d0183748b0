package nodegroup

// UnderutilizedRequester is the value of spec.requestedBy in the NodeRetirements of underutilized nodes. It must not
// change, although it contains an old name: stored NodeRetirements have this value.
const UnderutilizedRequester = "slipway manager, underused"
