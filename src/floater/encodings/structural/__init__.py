"""Position in trees and graphs (the survey, section 4.3)."""
