package placement

// ruleProtected keeps the nodes that the caller protects, such as machines whose membership in a cloud pool says that
// they must not be evicted.
var ruleProtected = nodeRule{
	name:   "protected",
	object: func(_ *Snapshot, n *node, o *Options) string { return o.Protected[n.name()] },
}
