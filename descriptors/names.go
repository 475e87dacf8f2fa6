package descriptors

// String returns the mode as policies write it.
func (m IdentityMode) String() string { return nameOf(identityNames, m) }

// String returns the mode as policies write it.
func (m FailMode) String() string { return nameOf(failModeNames, m) }

// String returns the mode as policies write it.
func (m Mode) String() string { return nameOf(modeNames, m) }

// String returns the scope as policies write it.
func (s Scope) String() string { return nameOf(scopeNames, s) }

func nameOf[E ~uint8](names []string, e E) string {
	if int(e) < len(names) && names[e] != "" {
		return names[e]
	}
	return "invalid"
}
