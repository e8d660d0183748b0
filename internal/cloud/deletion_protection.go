package cloud

// DeletionProtectionReporter is a [Provider] that reports which instances a user has protected from deletion. For any
// other Provider, Slipway does not read an instance just to check its protection.
type DeletionProtectionReporter interface {
	// ReportsDeletionProtection does nothing. It marks the provider.
	ReportsDeletionProtection()
}
