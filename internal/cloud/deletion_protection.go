package cloud

// DeletionProtectionReporter is a [Provider] that reports which instances a user has protected from deletion. For other providers, Slipway
// reads no instance only for that.
type DeletionProtectionReporter interface {
	// ReportsDeletionProtection does nothing. It marks the provider.
	ReportsDeletionProtection()
}
