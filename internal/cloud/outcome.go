package cloud

// Outcome sums up what came of a call, as a metric's label: "ok", "not-found", "throttled", "refused", or "error" for
// anything else.
func Outcome(err error) string {
	switch {
	case err == nil:
		return "ok"
	case IsNotFound(err):
		return "not-found"
	case IsThrottled(err):
		return "throttled"
	case RefusalOf(err) != "":
		return "refused"
	}
	return "error"
}
